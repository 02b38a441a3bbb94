"""Ports for servers that can't be asked which one they got."""

from __future__ import annotations

import contextlib
import os
import random
import socket

from moonpool.benchmarks.processes import PORTS

WORKERS = 8
"""Workers of pytest-xdist that draw from ports of their own."""

_given: set[int] = set()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports that nobody listens on, and that nobody was given before. Drawn, not counted: tests of other
    checkouts run beside this one."""
    return [_draw(1, host) for _ in range(count)]


def free_pair() -> int:
    """A port that nobody listens on, and nobody on the next."""
    return _draw(2, "127.0.0.1")


def _draw(width: int, host: str) -> int:
    """The first of so many ports in a row."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    share = len(PORTS) // WORKERS
    ours = PORTS[worker * share : (worker + 1) * share - width]
    for first in random.SystemRandom().sample(ours, len(ours)):
        row = range(first, first + width)
        if _given.isdisjoint(row) and all(_is_free(port, host) for port in row):
            _given.update(row)
            return first
    raise AssertionError(f"no {width} free ports in a row are left on {host}")


def _is_free(port: int, host: str) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((host, port))
        return True
    return False
