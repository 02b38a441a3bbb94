"""Entries of one score in the order in which they go: a heap while single ones come and go, sorted arrays while hundreds do."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.packed import I64

F64 = NDArray[np.float64]


class OpenEntries:
    """(key, row) pairs, the least of them first. Each form is made of the other one when it is asked for."""

    def __init__(self, keys: F64, rows: I64) -> None:
        """In any order."""
        order = np.lexsort((rows, keys))
        self._keys, self._rows = keys[order], rows[order]
        self._heap: list[tuple[float, int]] | None = None

    def __len__(self) -> int:
        return len(self._rows) if self._heap is None else len(self._heap)

    def __iter__(self) -> Iterator[int]:
        """Rows, in any order."""
        return iter(self._rows.tolist() if self._heap is None else [row for _, row in self._heap])

    def first(self) -> tuple[float, int]:
        """There must be one."""
        if self._heap is not None:
            return self._heap[0]
        return float(self._keys[0]), int(self._rows[0])

    def push(self, key: float, row: int) -> None:
        """Adds one."""
        heappush(self._as_heap(), (key, row))

    def pop(self) -> tuple[float, int]:
        """Takes the first one."""
        return heappop(self._as_heap())

    def sorted(self, count: int) -> tuple[F64, I64]:
        """The first `count`."""
        if self._heap is not None:
            self._heap.sort()
            self._keys = np.array([key for key, _ in self._heap], dtype=np.float64)
            self._rows = np.array([row for _, row in self._heap], dtype=np.int64)
            self._heap = None
        return self._keys[:count], self._rows[:count]

    def drop(self, count: int) -> None:
        """Takes the first `count`, of which `sorted` was asked."""
        assert self._heap is None
        self._keys, self._rows = self._keys[count:], self._rows[count:]

    def _as_heap(self) -> list[tuple[float, int]]:
        if self._heap is None:
            self._heap = list(zip(self._keys.tolist(), self._rows.tolist(), strict=True))
        return self._heap
