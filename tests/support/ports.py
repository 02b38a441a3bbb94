"""Ports for servers that can't be asked which one they got."""

from __future__ import annotations

import contextlib
import random
import socket

PORTS = range(20_000, 32_000)
"""No outgoing connection takes these: a port that is free now is free a moment later too."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports that nobody listens on. Drawn, not counted: other tests run beside this one."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if _is_free(port, host):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"fewer than {count} ports are free on {host}")


def free_pair() -> int:
    """A port that nobody listens on, and nobody on the next."""
    return next(port for port in free_ports(64) if _is_free(port + 1, "127.0.0.1"))


def _is_free(port: int, host: str) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((host, port))
        return True
    return False
