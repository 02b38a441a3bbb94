"""Copies that left the index and whose headers the nodes must flip, gathered while a request is handled."""

from __future__ import annotations

from moonpool.schemas.messages import DropList
from moonpool.schemas.packed import U32, U64, join_hashes, pack_u16, pack_u32, pack_u64

LOCATIONS_A_LIST = 32768
"""Keeps a drop message far below the frame limit."""


class _Locations:
    def __init__(self, keyspace: bytes) -> None:
        self.keyspace = keyspace
        self.ranks: list[int] = []
        self.hashes: list[bytes] = []
        self.slots: list[int] = []
        self.generations: list[int] = []

    def takes(self, keyspace: bytes) -> bool:
        return keyspace == self.keyspace and len(self.ranks) < LOCATIONS_A_LIST

    def packed(self, shard: int) -> DropList:
        return DropList(
            self.keyspace,
            pack_u16(self.ranks),
            join_hashes(self.hashes),
            pack_u32(self.slots),
            pack_u64(self.generations),
            shard,
        )


class DropBatch:
    """Exact locations of one shard by segment index, in the order in which they were dropped."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self._lists: dict[int, list[_Locations | DropList]] = {}

    def add(
        self, segment: int, keyspace: bytes, rank: int, block_hash: bytes, slot: int, generation: int
    ) -> None:
        """One copy is to go."""
        self.add_row(segment, keyspace, block_hash, [rank], [slot], [generation])

    def add_row(
        self,
        segment: int,
        keyspace: bytes,
        block_hash: bytes,
        ranks: list[int],
        slots: list[int],
        generations: list[int],
    ) -> None:
        """Copies of one block on one segment are to go."""
        lists = self._lists.setdefault(segment, [])
        locations = lists[-1] if lists else None
        if not isinstance(locations, _Locations) or not locations.takes(keyspace):
            locations = _Locations(keyspace)
            lists.append(locations)
        locations.ranks += ranks
        locations.hashes += [block_hash] * len(ranks)
        locations.slots += slots
        locations.generations += generations

    def add_rows(self, segment: int, keyspace: bytes, packed: bytes, slots: U32, generations: U64) -> None:
        """Copies of rank 0 of many blocks on one segment are to go: LOCATIONS_A_LIST at most."""
        columns = (bytes(2 * len(slots)), packed, slots.tobytes(), generations.tobytes())
        self._lists.setdefault(segment, []).append(DropList(keyspace, *columns, self.shard))

    def take(self, segment: int) -> list[DropList]:
        """Removes and returns what one segment has to drop."""
        lists = self._lists.pop(segment, [])
        return [some if isinstance(some, DropList) else some.packed(self.shard) for some in lists]

    def some(self, segment: int) -> bool:
        """Whether a segment has something to drop."""
        return segment in self._lists

    def segments(self) -> list[int]:
        """Segments that have something to drop."""
        return list(self._lists)
