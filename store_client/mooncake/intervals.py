"""Ranges of memory that a program has registered."""

from __future__ import annotations

import bisect
import threading


class Intervals:
    """Disjoint ranges by address. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def add(self, address: int, size_bytes: int) -> bool:
        """False where it is empty, or overlaps one that is there."""
        if address <= 0 or size_bytes <= 0:
            return False
        with self._lock:
            at = bisect.bisect_right(self._starts, address)
            before = self._starts[at - 1] if at else None
            if before is not None and before + self._sizes[before] > address:
                return False
            if at < len(self._starts) and self._starts[at] < address + size_bytes:
                return False
            self._starts.insert(at, address)
            self._sizes[address] = size_bytes
            return True

    def remove(self, address: int) -> bool:
        """False where none begins there."""
        with self._lock:
            if self._sizes.pop(address, None) is None:
                return False
            self._starts.remove(address)
            return True
