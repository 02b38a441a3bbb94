"""Numbers of one half, added up between two looks. Thread-safe: I/O threads count too."""

from __future__ import annotations

import threading

NAMES: dict[str, str] = {
    "match_requests": "requests that asked the pool",
    "match_hit_tokens": "tokens that the pool offered and the engine took",
    "match_timeouts": "requests that gave up waiting for the pool's answer",
    "match_failures": "questions that no master answered",
    "match_dropped": "questions dropped because the queue was full",
    "load_requests": "requests that loaded blocks",
    "load_blocks": "blocks loaded",
    "load_failed_blocks": "blocks that were to be loaded and were computed instead",
    "load_bytes": "bytes loaded",
    "load_seconds": "time spent loading",
    "save_jobs": "save jobs done",
    "save_blocks": "blocks written to the pool",
    "save_known_blocks": "blocks that the pool had already",
    "save_bytes": "bytes written to the pool",
    "save_seconds": "time spent saving",
    "save_failed_blocks": "blocks that the pool did not take",
    "save_dropped_blocks": "blocks never offered: queues were full, or the pool",
    "renewals": "lease renewals sent",
}
"""Every counter and what it counts: the metrics table of the docs."""


class Counters:
    """Adds up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}

    def add(self, name: str, amount: float = 1) -> None:
        """Raises a counter of NAMES."""
        assert name in NAMES, name
        with self._lock:
            self._values[name] = self._values.get(name, 0) + amount

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        with self._lock:
            values, self._values = self._values, {}
        return values
