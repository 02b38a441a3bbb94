"""Storage of the index: columns with one cell (or `width` cells) a row.

A column is an `array.array`: one cell is read or written in 30 ns (a numpy scalar takes 100 to 200), `view()`
shows the whole column to numpy without a copy, and growing is a realloc, which the kernel serves for large
memory by moving pages, not bytes. An array refuses to grow while a view of it lives, so views stay local.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_ROW = -1
NO_SEGMENT = 0xFFFF
ROWS_A_CHUNK_MIN = 64
ROWS_A_CHUNK_MAX = 8192  # about a millisecond of fresh memory at world 8


class Columns:
    """Equally long columns, and the rows of them that are free."""

    def __init__(self) -> None:
        self.count = 0
        self._columns: list[tuple[array[Any], int, bytes]] = []
        self._bytes: list[bytearray] = []
        self._free: list[int] = []

    def add(self, typecode: str, width: int = 1, fill: bytes = b"\x00") -> array[Any]:
        """A new column; `fill` is the byte that fresh cells are made of. One that comes late is filled at once."""
        column: array[Any] = array(typecode)
        column.frombytes(fill * (self.count * width * column.itemsize))
        self._columns.append((column, width, fill))
        return column

    def add_flags(self) -> bytearray:
        """A new column of bytes, all 0."""
        flags = bytearray()
        self._bytes.append(flags)
        return flags

    def take(self) -> int:
        """A free row; grows all columns by a chunk where there is none."""
        if not self._free:
            self._grow()
        return self._free.pop()

    def take_many(self, count: int) -> list[int]:
        """So many free rows."""
        while len(self._free) < count:
            self._grow()
        taken = self._free[-count:][::-1]
        del self._free[-count:]
        return taken

    def give(self, row: int) -> None:
        """The row is free again; its owner has reset its cells."""
        self._free.append(row)

    def give_many(self, rows: list[int]) -> None:
        """Rows are free again; their owner has reset their cells."""
        self._free += rows

    def _grow(self) -> None:
        more = min(max(self.count, ROWS_A_CHUNK_MIN), ROWS_A_CHUNK_MAX)
        for column, width, fill in self._columns:
            column.frombytes(fill * (more * width * column.itemsize))
        for flags in self._bytes:
            flags.extend(bytes(more))
        self._free.extend(range(self.count + more - 1, self.count - 1, -1))
        self.count += more

    @property
    def used(self) -> int:
        """Rows in use."""
        return self.count - len(self._free)

    def size_bytes(self) -> int:
        """Memory of all columns."""
        parts = [column for column, _, _ in self._columns]
        return sum(map(sys.getsizeof, parts)) + sum(map(sys.getsizeof, self._bytes))


def view(column: array[Any] | bytearray) -> NDArray[Any]:
    """The whole column as a numpy array that shares its memory. Must be gone before the column grows."""
    return np.frombuffer(column, dtype=column.typecode if isinstance(column, array) else np.uint8)
