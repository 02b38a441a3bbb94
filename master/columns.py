"""Storage of the index: columns with one cell (or `width` cells) a row, and the map from block hash to row.

A column is an `array.array`: one cell is read or written in 30 ns (a numpy scalar takes 100 to 200), `view()`
shows the whole column to numpy without a copy, and growing is a realloc, which the kernel serves for large
memory by moving pages, not bytes. An array refuses to grow while a view of it lives, so views stay local.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.packed import I64
from moonpool.store_client.native import find_rows

NO_ROW = -1
NO_SEGMENT = 0xFFFF
ROWS_A_CHUNK_MIN = 64
ROWS_A_CHUNK_MAX = 8192  # about a millisecond of fresh memory at world 8
PARTS = 64


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


class HashMap:
    """Block hash to row. Split in parts so that no insertion ever rehashes more than 1/64 of it."""

    def __init__(self) -> None:
        self.parts: list[dict[bytes, int]] = [{} for _ in range(PARTS)]
        """By a hash's first byte. Others read them only."""
        self._getters = [part.get for part in self.parts]

    def get(self, block_hash: bytes) -> int:
        """The row, or NO_ROW."""
        return self.parts[block_hash[0] % PARTS].get(block_hash, NO_ROW)

    def get_all(self, hashes: Sequence[bytes]) -> list[int]:
        """The row of each, or NO_ROW."""
        getters = self._getters
        return [getters[h[0] % PARTS](h, NO_ROW) for h in hashes]

    def find(self, packed: bytes, hash_bytes: int) -> I64:
        """The row of each packed hash, or NO_ROW."""
        return find_rows(self.parts, packed, hash_bytes)

    def set(self, block_hash: bytes, row: int) -> None:
        """Names a row."""
        self.parts[block_hash[0] % PARTS][block_hash] = row

    def set_all(self, hashes: Sequence[bytes], rows: Sequence[int]) -> None:
        """Names rows."""
        parts = self.parts
        for block_hash, row in zip(hashes, rows, strict=True):
            parts[block_hash[0] % PARTS][block_hash] = row

    def remove(self, block_hash: bytes) -> None:
        """Forgets a name that is there."""
        del self.parts[block_hash[0] % PARTS][block_hash]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Every (hash, row). For validation and tests: a scan."""
        for part in self.parts:
            yield from part.items()

    def size_bytes(self) -> int:
        """Memory of the dicts, without the hashes and numbers in them."""
        return sum(map(sys.getsizeof, self.parts))
