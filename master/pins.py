"""Pinned rows of one table: never evicted until unpinned, or until their time is over."""

from __future__ import annotations

import heapq
import math

ENTRIES_MIN = 64


class Pins:
    """Row -> when its pin ends (infinity: when it is unpinned)."""

    def __init__(self) -> None:
        self._until_s: dict[int, float] = {}
        self._ends: list[tuple[float, int]] = []  # heap; entries whose pin changed since are skipped

    def __contains__(self, row: int) -> bool:
        return row in self._until_s

    def __len__(self) -> int:
        return len(self._until_s)

    def until_s(self, row: int) -> float:
        """When the pin of a pinned row ends."""
        return self._until_s[row]

    def add(self, row: int, until_s: float) -> None:
        """Pins, or pins longer. A pin never gets shorter but by unpinning."""
        until_s = max(until_s, self._until_s.get(row, 0.0))
        self._until_s[row] = until_s
        if until_s < math.inf:
            heapq.heappush(self._ends, (until_s, row))
        self._forget_changed()

    def remove(self, row: int) -> bool:
        """Unpins. Returns whether the row was pinned."""
        pinned = self._until_s.pop(row, None) is not None
        self._forget_changed()
        return pinned

    def _forget_changed(self) -> None:
        """Entries whose pin has changed don't wait for their time once they are the larger part."""
        if len(self._ends) > 2 * len(self._until_s) + ENTRIES_MIN:
            self._ends = [(end_s, row) for row, end_s in self._until_s.items() if end_s < math.inf]
            heapq.heapify(self._ends)

    def expire(self, now_s: float, rows_max: int) -> list[int]:
        """Unpins up to `rows_max` rows whose time is over and returns them."""
        ended: list[int] = []
        while self._ends and self._ends[0][0] <= now_s and len(ended) < rows_max:
            until_s, row = heapq.heappop(self._ends)
            if self._until_s.get(row) == until_s:
                del self._until_s[row]
                ended.append(row)
        return ended

    def rows(self) -> list[int]:
        """All pinned rows."""
        return list(self._until_s)
