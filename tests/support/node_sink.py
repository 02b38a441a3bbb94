"""A Sink that plays the ops into an index as a master would, so that a test can compare it with the headers."""

from __future__ import annotations

from dataclasses import dataclass

from moonpool.schemas.messages import Entries, Freed, Moved, Op, View
from moonpool.schemas.packed import U32, U64, split_hashes, u16s, u32s, u64s


@dataclass(frozen=True)
class Entry:
    """One row of a report."""

    keyspace: bytes
    rank: int
    block_hash: bytes
    generation: int
    length: int
    position: int
    parent: bytes


def rows_of(op: Entries) -> list[tuple[int, Entry]]:
    """(slot, entry) of each row."""
    hash_bytes = len(op.hashes) // (len(op.ranks) // 2)
    columns = zip(
        u32s(op.slots).tolist(),
        u16s(op.ranks).tolist(),
        split_hashes(op.hashes, hash_bytes),
        u64s(op.generations).tolist(),
        u64s(op.lengths).tolist(),
        u32s(op.positions).tolist(),
        split_hashes(op.parents, hash_bytes),
        strict=True,
    )
    return [
        (slot, Entry(op.keyspace, rank, block_hash, generation, length, position, parent))
        for slot, rank, block_hash, generation, length, position, parent in columns
    ]


class IndexSink:
    """`index`: slot -> entry, as told."""

    def __init__(self, naming: bool = False) -> None:
        self.index: dict[int, Entry] = {}
        self.under_way = naming
        self.unopened = False
        self.ops: list[Op] = []
        self.unchecked: list[tuple[int, int]] = []

    def opening(self) -> bool:
        return self.unopened

    def naming(self, shard: int) -> bool:
        """See Sink."""
        return self.under_way

    def emit(self, op: Op, shard: int = 0) -> int:
        """See Sink. Every op must fit what was told before."""
        self.ops.append(op)
        self.play(op)
        return len(self.ops)

    def play(self, op: Op) -> None:
        """Applies one op."""
        if isinstance(op, Entries):
            for slot, entry in rows_of(op):
                assert slot not in self.index or self.index[slot] == entry, "a slot was taken twice"
                self.index[slot] = entry
        elif isinstance(op, Freed):
            for slot, generation in zip(u32s(op.slots).tolist(), u64s(op.generations).tolist(), strict=True):
                assert self.index.pop(slot).generation == generation
        elif isinstance(op, Moved):
            columns = (u32s(op.slots), u64s(op.generations), u32s(op.new_slots), u64s(op.new_generations))
            for slot, generation, new_slot, new in zip(*(c.tolist() for c in columns), strict=True):
                entry = self.index.pop(slot)
                assert entry.generation == generation and new_slot not in self.index
                self.index[new_slot] = Entry(**{**vars(entry), "generation": new})

    def checksum(self, payload: View) -> int:
        """See Sink."""
        return 0

    def written(self, slots: U32, generations: U64) -> None:
        """See Sink."""
        self.unchecked += zip(slots.tolist(), generations.tolist(), strict=True)
