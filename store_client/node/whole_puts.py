"""Objects that arrive whole, a few at a time: written and committed in one step, one by one.

Nobody ever sees them WRITING, since the node's lock is held throughout. Begin, fill and Commit work on arrays, whose
setting up takes ten times as long as all of this.
"""

from __future__ import annotations

import struct
from collections import Counter

import msgspec
import numpy as np

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import SlotState
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import BeginItem, Entries, Status, View
from moonpool.store_client.node.ahead import header_of
from moonpool.store_client.node.allocator import NO_SLOT
from moonpool.store_client.node.items import check_item, check_lengths
from moonpool.store_client.node.layout import fixed_slot_bytes, object_slot_bytes
from moonpool.store_client.node.naming import name_slots
from moonpool.store_client.node.slots import Slots

FEW = 16
"""Objects of an item: more of them are quicker in arrays."""

_OK = bytes([Status.OK])


class Stored(msgspec.Struct, frozen=True):
    """`statuses`: one Status byte an object; `generations`: 0 where it was not stored. `entries`: of those that were stored,
    if any; `size_bytes`: their payload."""

    statuses: bytes
    generations: list[int]
    entries: Entries | None
    size_bytes: int


def store(
    slots: Slots, item: BeginItem, payload: View, spec: KeyspaceSpec, shards: int
) -> Stored | dict[int, int]:
    """Of an item of a flat keyspace, of FEW objects at most; payloads back to back. Where space is short nothing is stored, and returned is how many slots of which size
    are missing. Raises InvalidParams."""
    count, keys = check_item(item, spec, shards)
    if count == 1 and not spec.shard_bytes[0] and item.lengths == len(payload).to_bytes(8, "little"):
        return _store_one(slots, item, payload, spec, keys[0] if keys else b"")
    lengths = _lengths(item, spec, count)
    if sum(lengths) != len(payload):
        raise InvalidParams(
            field="payload", value=f"{len(payload)} bytes", allowed="the sum of the item's lengths"
        )
    if spec.variable_size:
        key_bytes = list(map(len, keys)) if keys else [0] * count
        sizes = list(map(object_slot_bytes, map(int.__add__, lengths, key_bytes)))
    else:
        sizes = [fixed_slot_bytes(spec.shard_bytes[item.rank])] * count
    page_bytes = slots.layout.page_bytes
    chosen = [i for i, size in enumerate(sizes) if size <= page_bytes]
    taken = [slots.allocator.take_one(sizes[i]) for i in chosen]
    if NO_SLOT in taken:
        slots.allocator.give(np.array([slot for slot in taken if slot != NO_SLOT], dtype=np.uint32))
        return dict(Counter(sizes[i] for i, slot in zip(chosen, taken, strict=True) if slot == NO_SLOT))
    statuses = bytearray([Status.TOO_LARGE]) * count
    hashes: list[bytes] = []
    generations: list[int] = []
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    for i, slot in zip(chosen, taken, strict=True):
        hashes.append(item.hashes[i * spec.hash_bytes : (i + 1) * spec.hash_bytes])
        key = keys[i] if keys else b""
        body = payload if count == 1 else payload[starts[i] : starts[i + 1]]
        generations.append(_write(slots, slot, sizes[i], item, spec, hashes[-1], key, body))
        statuses[i] = Status.OK
    if not taken:
        return Stored(bytes(statuses), [0] * count, None, 0)
    entries = Entries(
        item.keyspace,
        _column("H", [item.rank] * len(taken)),
        _column("I", [item.position] * len(taken)),
        b"".join(hashes),
        bytes(spec.hash_bytes * len(taken)),
        _column("I", taken),
        _column("Q", generations),
        _column("Q", [lengths[i] for i in chosen]),
    )
    of_all = [0] * count
    for i, generation in zip(chosen, generations, strict=True):
        of_all[i] = generation
    return Stored(bytes(statuses), of_all, entries, sum(lengths[i] for i in chosen))


def _store_one(
    slots: Slots, item: BeginItem, payload: View, spec: KeyspaceSpec, key: bytes
) -> Stored | dict[int, int]:
    """The same of one object of a size of its own, without a list or a column of one."""
    slot_bytes = object_slot_bytes(len(payload) + len(key))
    if slot_bytes > slots.layout.page_bytes:
        return Stored(bytes([Status.TOO_LARGE]), [0], None, 0)
    slot = slots.allocator.take_one(slot_bytes)
    if slot == NO_SLOT:
        return {slot_bytes: 1}
    generation = _write(slots, slot, slot_bytes, item, spec, item.hashes, key, payload)
    entries = Entries(
        item.keyspace,
        item.rank.to_bytes(2, "little"),
        item.position.to_bytes(4, "little"),
        item.hashes,
        bytes(len(item.hashes)),
        slot.to_bytes(4, "little"),
        generation.to_bytes(8, "little"),
        item.lengths,
    )
    return Stored(_OK, [generation], entries, len(payload))


def _lengths(item: BeginItem, spec: KeyspaceSpec, count: int) -> tuple[int, ...]:
    check_lengths(item, count)
    lengths = struct.unpack(f"<{count}Q", item.lengths)
    if not spec.variable_size and set(lengths) != {spec.shard_bytes[item.rank]}:
        allowed = f"{spec.shard_bytes[item.rank]} bytes a block"
        raise InvalidParams(field="begin.lengths", value="another size", allowed=allowed)
    return lengths


def _column(kind: str, values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}{kind}", *values)


def _write(
    slots: Slots,
    slot: int,
    slot_bytes: int,
    item: BeginItem,
    spec: KeyspaceSpec,
    block_hash: bytes,
    key: bytes,
    body: View,
) -> int:
    """Everything, the header's word last (I3). Returns its generation."""
    start, length = slots.data_offset(slot, slot_bytes), len(body)
    slots.data.data[start : start + length] = body  # a memoryview takes a slice in a tenth of an array's time
    generation = slots.new_generation()
    header = header_of(item, spec, SlotState.COMMITTED, 0, 0, slots.sink.checksum(body))
    number, lengths = slot.to_bytes(4, "little"), length.to_bytes(8, "little")
    named = name_slots(slots, number, header, generation, slot_bytes, lengths, block_hash, keys=[key])
    assert named == length
    slots.committed += 1
    return generation
