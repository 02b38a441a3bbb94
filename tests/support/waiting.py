"""Waiting for what will come, on a machine that may be slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""Nothing that comes at all takes so long, on whatever machine."""


def wait_until(holds: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Asks until it holds. Raises AssertionError where it never does."""
    end_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_s, "it never came to hold"
        time.sleep(0.01)


async def until(holds: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """The same in an event loop, which goes on meanwhile."""
    end_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_s, "it never came to hold"
        await asyncio.sleep(0.005)


def soon(timeout_s: float = 30.0) -> float:
    """A deadline, in time.monotonic(), for what is answered at once."""
    return time.monotonic() + timeout_s


def at_most(quiet_s: float) -> float:
    """How long something may take here that takes `quiet_s` on a quiet machine: this one may have a third of the speed,
    and stop any process for a second."""
    return 3 * quiet_s + 2
