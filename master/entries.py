"""Report ops as columns, checked before anything is applied: a bad op must not leave half of itself behind."""

from __future__ import annotations

from dataclasses import dataclass

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import DropList, Entries, Freed, Moved
from moonpool.schemas.packed import U16, U32, U64, count_of, split_hashes, u16s, u32s, u64s


@dataclass(frozen=True, slots=True, eq=False)
class EntryColumns:
    """Committed slots of one keyspace, one item an entry. `positions` and `parents` are empty in flat keyspaces."""

    hashes: list[bytes]
    packed: bytes  # the same
    ranks: U16
    positions: list[int]
    parents: list[bytes]
    slots: U32
    generations: U64
    lengths: U64


@dataclass(frozen=True, slots=True, eq=False)
class LocationColumns:
    """Exact places of one keyspace in the reporting segment."""

    hashes: list[bytes]
    ranks: list[int]
    slots: list[int]
    generations: list[int]


def check_entries(op: Entries, spec: KeyspaceSpec) -> None:
    """Raises InvalidParams where columns differ in length or a rank is outside the world."""
    count = len(op.slots) // 4
    sizes = (count * spec.hash_bytes, 2 * count, 4 * count, 8 * count, 8 * count)
    flat = spec.kind is not Kind.CHAINED
    if (
        flat
        and (len(op.hashes), len(op.ranks), len(op.slots), len(op.generations), len(op.lengths)) == sizes
        and op.ranks.count(0) == len(op.ranks)
    ):
        return  # as with every put of plain objects
    count = count_of(op.hashes, spec.hash_bytes, "hashes")
    _same_count(count, "entries.ranks", op.ranks, 2)
    _same_count(count, "entries.slots", op.slots, 4)
    _same_count(count, "entries.generations", op.generations, 8)
    _same_count(count, "entries.lengths", op.lengths, 8)
    if spec.kind is Kind.CHAINED:
        _same_count(count, "entries.positions", op.positions, 4)
        _same_count(count, "entries.parents", op.parents, spec.hash_bytes)
    _in_world(op.ranks, spec)


def read_entries(op: Entries, spec: KeyspaceSpec) -> EntryColumns:
    """Of an op that `check_entries` has passed."""
    chained = spec.kind is Kind.CHAINED
    return EntryColumns(
        split_hashes(op.hashes, spec.hash_bytes),
        op.hashes,
        u16s(op.ranks),
        u32s(op.positions).tolist() if chained else [],
        split_hashes(op.parents, spec.hash_bytes) if chained else [],
        u32s(op.slots),
        u64s(op.generations),
        u64s(op.lengths),
    )


def read_locations(op: Freed | Moved | DropList, spec: KeyspaceSpec) -> LocationColumns:
    """The same of locations."""
    hashes = split_hashes(op.hashes, spec.hash_bytes)
    _same_count(len(hashes), "freed.ranks", op.ranks, 2)
    _same_count(len(hashes), "freed.slots", op.slots, 4)
    _same_count(len(hashes), "freed.generations", op.generations, 8)
    if isinstance(op, Moved):
        _same_count(len(hashes), "moved.new_slots", op.new_slots, 4)
        _same_count(len(hashes), "moved.new_generations", op.new_generations, 8)
    _in_world(op.ranks, spec)
    return LocationColumns(
        hashes, u16s(op.ranks).tolist(), u32s(op.slots).tolist(), u64s(op.generations).tolist()
    )


def check_rank(rank: int, spec: KeyspaceSpec) -> None:
    """Raises InvalidParams where the keyspace has no such rank."""
    if not 0 <= rank < spec.world:
        raise InvalidParams(field="rank", value=rank, allowed=f"0 to {spec.world - 1}")


def _same_count(count: int, field: str, packed: bytes, item_bytes: int) -> None:
    if len(packed) != count * item_bytes:
        count_of(packed, item_bytes, field)
        raise InvalidParams(field=field, value=f"{len(packed)} bytes", allowed=f"{count} items")


def _in_world(ranks: bytes, spec: KeyspaceSpec) -> None:
    if ranks.count(0) < len(ranks):  # the usual case in most keyspaces is rank 0 alone
        check_rank(int(u16s(ranks).max()), spec)
