"""The index's map from block hash to row, and one with filters that spare it most questions after what isn't there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from moonpool.master.columns import NO_ROW
from moonpool.schemas.packed import I64
from moonpool.store_client.native import NameLists, find_rows, remove_name, set_name

PARTS = 64
CELL_FULL = 255
"""A cell of a filter that is that full stays so."""

_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


class HashMap:
    """Block hash to row. Split in parts so that no insertion ever rehashes more than 1/64 of it."""

    def __init__(self) -> None:
        self._parts: list[dict[bytes, int]] = [{} for _ in range(PARTS)]  # by a hash's first byte
        self._getters = [part.get for part in self._parts]
        self.lists: NameLists = (self._parts, [])
        """The same for the loops in C, the only others that change it."""

    def get(self, block_hash: bytes) -> int:
        """The row, or NO_ROW."""
        return self._parts[block_hash[0] % PARTS].get(block_hash, NO_ROW)

    def get_all(self, hashes: Sequence[bytes]) -> list[int]:
        """The row of each, or NO_ROW."""
        getters = self._getters
        return [getters[h[0] % PARTS](h, NO_ROW) for h in hashes]

    def find(self, packed: bytes, hash_bytes: int) -> I64:
        """The row of each packed hash, or NO_ROW."""
        return find_rows(self.lists, packed, hash_bytes)

    def set(self, block_hash: bytes, row: int) -> None:
        """Names a row."""
        self._parts[block_hash[0] % PARTS][block_hash] = row

    def set_all(self, hashes: Sequence[bytes], rows: Sequence[int]) -> None:
        """Names rows."""
        parts = self._parts
        for block_hash, row in zip(hashes, rows, strict=True):
            parts[block_hash[0] % PARTS][block_hash] = row

    def remove(self, block_hash: bytes) -> None:
        """Forgets a name that is there."""
        del self._parts[block_hash[0] % PARTS][block_hash]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Every (hash, row). For validation and tests: a scan."""
        for part in self._parts:
            yield from part.items()

    def size_bytes(self) -> int:
        """Memory of the dicts, without the hashes and numbers in them."""
        return sum(map(sys.getsizeof, self._parts))

    def validate(self) -> None:
        """Raises AssertionError where a hash lies in another part than it should."""
        for number, part in enumerate(self._parts):
            for block_hash in part:
                assert block_hash[0] % PARTS == number, "a hash in the wrong part"


class FilteredMap(HashMap):
    """The same, where questions after thousands of hashes that aren't there are usual. Only where native.HOT.

    A dict is asked for one hash after the other, and each question waits for memory. So before each dict lies a filter, that
    says from one byte of most unknown hashes that they are unknown: it counts how many names fall on each of its cells, of
    which there are 4 to 16 a name. Whatever changes a dict changes its filter; one that is outgrown is made anew from its
    dict alone. Questions after few hashes do without.
    """

    def __init__(self) -> None:
        super().__init__()
        self._filters = [bytearray(1) for _ in range(PARTS)]
        self.lists = (self._parts, self._filters)

    def set(self, block_hash: bytes, row: int) -> None:
        """See HashMap."""
        set_name(self.lists, block_hash, row)

    def set_all(self, hashes: Sequence[bytes], rows: Sequence[int]) -> None:
        """See HashMap."""
        for block_hash, row in zip(hashes, rows, strict=True):
            set_name(self.lists, block_hash, row)

    def remove(self, block_hash: bytes) -> None:
        """See HashMap."""
        remove_name(self.lists, block_hash)

    def size_bytes(self) -> int:
        """And of the filters."""
        return super().size_bytes() + sum(map(sys.getsizeof, self._filters))

    def validate(self) -> None:
        """Raises AssertionError, too, where a filter doesn't count what its dict holds: a name that it misses is lost."""
        super().validate()
        for part, cells in zip(self._parts, self._filters, strict=True):
            counts = bytearray(len(cells))
            for block_hash in part:
                at = _cell_of(block_hash) % len(cells)
                counts[at] += counts[at] < CELL_FULL
            if cells != counts:
                differing = {cell for cell, count in zip(cells, counts, strict=True) if cell != count}
                assert differing == {CELL_FULL}, "a filter that counts wrongly"


def _cell_of(block_hash: bytes) -> int:
    """See hot_map.c."""
    first, second = (int.from_bytes(block_hash[at : at + 8], "little") for at in (0, 8))
    turned = (second << 31 | second >> 33) & _WORD
    return ((first ^ turned) * _MIX & _WORD) >> 24
