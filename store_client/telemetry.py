"""What one client's transfers took, and which of its peers it doesn't ask for the moment: for whoever exports it."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

TIMES_MAX = 1024
"""Of one transport and direction between two looks: what is above goes unseen, the oldest first."""


@dataclass(slots=True)
class Transferred:
    """Between this client and nodes, by one transport in one direction. `seconds`: of each call to a node."""

    size_bytes: int = 0
    failures: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_MAX))


Way = tuple[str, str]
"""(transport, load or save)."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Since the last look. `open_breakers`: by peer (master, node), how many failed lately and are not asked."""

    transfers: dict[Way, Transferred] = field(default_factory=dict)
    open_breakers: dict[str, int] = field(default_factory=dict)


class TransferCounts:
    """Adds up. Thread-safe; bounded where nobody looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ways: dict[Way, Transferred] = {}

    def add(self, way: Way, seconds: float, size_bytes: int) -> None:
        """A call to a node that moved something."""
        with self._lock:
            found = self._ways.get(way) or self._ways.setdefault(way, Transferred())
            found.size_bytes += size_bytes
            found.seconds.append(seconds)

    def failed(self, way: Way) -> None:
        """A call to a node through which nothing went."""
        with self._lock:
            self._ways.setdefault(way, Transferred()).failures += 1

    def take(self) -> dict[Way, Transferred]:
        """What was counted since the last call."""
        with self._lock:
            ways, self._ways = self._ways, {}
        return ways
