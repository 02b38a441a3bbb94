"""How long a server's calls took: a histogram a call, and the slow ones by name."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from moonpool.schemas.histogram import Log2Histogram

UNIT_S = 8e-6
BUCKETS = 21  # up to 4 s, and the rest
SLOW_S = 0.1
SLOW_MAX = 256


class SlowCall(NamedTuple):
    """One call that took SLOW_S or longer. `number` counts up from 1; `at_s`: seconds since 1970, of its end."""

    number: int
    at_s: float
    call: str
    peer: str
    took_s: float
    failed: bool


class CallTimings:
    """Of one server. Written by its event loop; what others read of it are copies made there."""

    def __init__(self) -> None:
        self.by_call: dict[str, Log2Histogram] = {}
        self.failures: dict[str, int] = {}
        self.slow: deque[SlowCall] = deque(maxlen=SLOW_MAX)
        self._slow_calls = 0

    def took(self, call: str, peer: str, seconds: float, failed: bool = False) -> None:
        """A call has been answered, its reply encoded."""
        histogram = self.by_call.get(call)
        if histogram is None:
            histogram = self.by_call[call] = Log2Histogram(UNIT_S, BUCKETS)
        histogram.add(seconds)
        if failed:
            self.failures[call] = self.failures.get(call, 0) + 1
        if seconds >= SLOW_S:
            self._slow_calls += 1
            self.slow.append(SlowCall(self._slow_calls, time.time(), call, peer, seconds, failed))
