"""What happened lately, for people: a bounded ring that any thread may read."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

EVENTS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Event:
    """`number` counts up, over restarts too; `at_s`: seconds since 1970."""

    number: int
    at_s: float
    kind: str
    text: str
    facts: dict[str, str | int | float | bool] = field(default_factory=dict)


class Events:
    """The newest EVENTS_MAX events."""

    def __init__(self) -> None:
        self._ring: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._lock = threading.Lock()
        # Beyond all numbers of an earlier process: fewer events than milliseconds have passed.
        self._number = time.time_ns() // 1_000_000

    def add(self, kind: str, text: str, **facts: str | float | bool) -> None:
        """Something has happened."""
        with self._lock:
            self._number += 1
            self._ring.append(Event(self._number, time.time(), kind, text, facts))

    def after(self, number: int, limit: int, kinds: Iterable[str] = ()) -> list[Event]:
        """The oldest events with greater numbers; at most `limit`."""
        wanted = set(kinds)
        with self._lock:
            events = list(self._ring)
        found = [event for event in events if event.number > number and (not wanted or event.kind in wanted)]
        return found[:limit]

    @property
    def newest(self) -> int:
        """The newest event's number; where there is none, one less than the first will have."""
        return self._number
