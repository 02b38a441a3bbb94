"""The clock seam. Cores never read a clock: they are given `now_s`; whoever calls them holds one of these."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds. Differences mean something, values don't."""

    def now_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class MonotonicClock:
    """The machine's own."""

    def now_s(self) -> float:
        """time.monotonic(): unmoved by steps of the wall clock."""
        return time.monotonic()


class FakeClock:
    """Stands still until a test moves it."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        """Where the test has moved it."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Moves on."""
        assert seconds >= 0
        self._now_s += seconds
