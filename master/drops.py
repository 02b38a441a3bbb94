"""Copies that left the index and whose headers the nodes must flip, gathered while a request is handled."""

from __future__ import annotations

from moonpool.schemas.messages import DropList
from moonpool.schemas.packed import join_hashes, pack_u16, pack_u32, pack_u64

LOCATIONS_A_LIST = 32768
"""Keeps a drop message far below the frame limit."""


class _Locations:
    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.hashes: list[bytes] = []
        self.slots: list[int] = []
        self.generations: list[int] = []

    def packed(self, keyspace: bytes, shard: int) -> DropList:
        return DropList(
            keyspace,
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
        self._lists: dict[int, list[tuple[bytes, _Locations]]] = {}

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
        if not lists or lists[-1][0] != keyspace or len(lists[-1][1].ranks) >= LOCATIONS_A_LIST:
            lists.append((keyspace, _Locations()))
        locations = lists[-1][1]
        locations.ranks += ranks
        locations.hashes += [block_hash] * len(ranks)
        locations.slots += slots
        locations.generations += generations

    def add_rows(
        self, segment: int, keyspace: bytes, hashes: list[bytes], slots: list[int], generations: list[int]
    ) -> None:
        """Copies of rank 0 of many blocks on one segment are to go."""
        for first in range(0, len(hashes), LOCATIONS_A_LIST):
            part = slice(first, first + LOCATIONS_A_LIST)
            locations = _Locations()
            locations.hashes, locations.slots = hashes[part], slots[part]
            locations.generations = generations[part]
            locations.ranks = [0] * len(locations.hashes)
            self._lists.setdefault(segment, []).append((keyspace, locations))

    def take(self, segment: int) -> list[DropList]:
        """Removes and returns what one segment has to drop."""
        lists = self._lists.pop(segment, [])
        return [locations.packed(keyspace, self.shard) for keyspace, locations in lists]

    def some(self, segment: int) -> bool:
        """Whether a segment has something to drop."""
        return segment in self._lists

    def segments(self) -> list[int]:
        """Segments that have something to drop."""
        return list(self._lists)
