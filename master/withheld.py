"""Entries of an inventory that a removal has named: they don't count, and go (I8: hard state decides removals)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.master.drops import DropBatch
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Drop, Entries
from moonpool.schemas.packed import split_hashes, u16s, u32s, u64s

NEVER = 1 << 64
"""Above every generation."""


def withhold(
    op: Entries, removals: Sequence[Drop], spec: KeyspaceSpec, segment: int, drops: DropBatch
) -> Entries:
    """The entries that stay. Those that go are named to the node once more, exactly: a slot that was filled after the
    node had done the removal, and before it said so, would else be in no index. Those that were put after the removal
    stay (see Drop.before)."""
    mine = [drop for drop in removals if drop.keyspace == op.keyspace]
    exact = [some for drop in removals for some in drop.drops if some.keyspace == op.keyspace]
    if not mine and not exact:
        return op
    hashes = split_hashes(op.hashes, spec.hash_bytes)
    ends: dict[bytes, int] = {}
    for drop in mine:
        for one in split_hashes(drop.hashes, spec.hash_bytes):
            ends[one] = max(ends.get(one, 0), drop.before or NEVER)
    places = {
        place
        for some in exact
        for place in zip(u32s(some.slots).tolist(), u64s(some.generations).tolist(), strict=True)
    }
    whole_end = max((drop.before or NEVER for drop in mine if drop.whole_keyspace), default=0)
    slots, generations = u32s(op.slots), u64s(op.generations)
    goes = np.array(
        [
            place[1] < max(whole_end, ends.get(one, 0)) or place in places
            for one, *place_ in zip(hashes, slots.tolist(), generations.tolist(), strict=True)
            for place in [tuple(place_)]
        ],
        dtype=np.bool_,
    )
    return keep(op, ~goes, spec, segment, drops)


def keep(
    op: Entries, stays: NDArray[np.bool_], spec: KeyspaceSpec, segment: int, drops: DropBatch
) -> Entries:
    """Those entries that stay; the others are named to the node, to be dropped."""
    if stays.all():
        return op
    size = spec.hash_bytes
    columns = (u16s(op.ranks), u32s(op.slots), u64s(op.generations))
    for index in np.flatnonzero(~stays).tolist():
        rank, slot, generation = (int(column[index]) for column in columns)
        block_hash = op.hashes[index * size : (index + 1) * size]
        drops.add(segment, op.keyspace, rank, block_hash, slot, generation)
    return _chosen(op, stays, spec)


def _chosen(op: Entries, stays: NDArray[np.bool_], spec: KeyspaceSpec) -> Entries:
    sizes = {"ranks": 2, "hashes": spec.hash_bytes, "slots": 4, "generations": 8, "lengths": 8}
    if spec.kind is Kind.CHAINED:
        sizes |= {"positions": 4, "parents": spec.hash_bytes}
    columns = {
        name: np.frombuffer(getattr(op, name), dtype=np.uint8).reshape(-1, size)[stays].tobytes()
        for name, size in sizes.items()
    }
    return msgspec.structs.replace(op, **columns)
