"""Whose turn it is on a data lane: its peer's, while it is idle, or its thread's.

Between a byte that arrives on an idle lane and the thread that begins with it, somebody else may want the lane's place:
one of them gets it, and the other one hears of that.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from moonpool.schemas.packed import U64
from moonpool.store_client import native, native_lanes

_BUSY, _RETIRED = 0, 1
"""Values of the first cell; any other is the time (monotonic, ns) since when the lane is idle."""


class Turn:
    """Of one lane. `cells` are shared with hot_node.c, which rests and begins as this does: the turn, and how many bytes
    were read."""

    def __init__(self) -> None:
        self.cells: U64 = np.zeros(2, dtype=np.uint64)
        self._lock = threading.Lock()
        self._hot = native.HOT

    @property
    def idle_since_s(self) -> float | None:
        """Monotonic; None while it shakes hands or has an exchange under way, and once it is retired."""
        since_ns = int(self.cells[0])
        return since_ns / 1e9 if since_ns > _RETIRED else None

    @property
    def bytes_read(self) -> int:
        """Payload that was sent."""
        return int(self.cells[1])

    def count(self, size_bytes: int) -> None:
        """Adds to `bytes_read`. By the lane's thread."""
        self.cells[1] += np.uint64(size_bytes)

    def rest(self) -> None:
        """The lane is idle from now on. By its thread."""
        self.cells[0] = time.monotonic_ns()

    def begin(self) -> bool:
        """A request arrives; False where the lane was retired before. By its thread."""
        turn = int(self.cells[0])
        return turn == _BUSY or self._swap(turn, _BUSY)

    def retire(self) -> bool:
        """Ends the lane if it is idle still. By anybody."""
        return self._swap(int(self.cells[0]), _RETIRED)

    def _swap(self, expected: int, value: int) -> bool:
        if expected <= _RETIRED:
            return False
        if self._hot:
            return native_lanes.swap(self.cells, expected, value)
        with self._lock:
            still = int(self.cells[0]) == expected
            if still:
                self.cells[0] = value
            return still
