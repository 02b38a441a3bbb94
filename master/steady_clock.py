"""The master's clock: monotonic time without the stretches in which the master itself was not running."""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_MAX_S = 0.5


class SteadyClock:
    """A Clock, read at least several times a second, that moves by `STEP_MAX_S` at most between two readings.

    A master that was frozen (a stopped process, a paused virtual machine) finds its nodes' heartbeats waiting in
    its sockets. Were the pause counted, all of them would look lost before the first is read.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last_s = monotonic()
        self._now_s = self._last_s

    def now_s(self) -> float:
        """Seconds; never goes back."""
        last_s, self._last_s = self._last_s, self._monotonic()
        self._now_s += min(self._last_s - last_s, STEP_MAX_S)
        return self._now_s
