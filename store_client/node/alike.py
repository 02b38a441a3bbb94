"""Begins of many objects that take slots of one size: their headers and key texts are written in one go."""

from __future__ import annotations

import numpy as np

from moonpool.schemas.header import SlotState
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import BeginItem
from moonpool.store_client.node.ahead import header_of
from moonpool.store_client.node.items import check_item, check_lengths
from moonpool.store_client.node.layout import object_slot_bytes
from moonpool.store_client.node.naming import name_slots
from moonpool.store_client.node.puts import Put
from moonpool.store_client.node.slots import Slots


def begin_alike(
    slots: Slots, session: int, put_id: int, item: BeginItem, spec: KeyspaceSpec, shards: int
) -> Put | None:
    """A put of rows that stand alone, all with slots, WRITING. None, and nothing is changed, where they are of other kinds,
    of several sizes, or there is no room. Raises InvalidParams."""
    if spec.kind is not Kind.FLAT or not spec.variable_size:
        return None
    count, keys = check_item(item, spec, shards)
    check_lengths(item, count)
    first_bytes = int.from_bytes(item.lengths[:8], "little") + (len(keys[0]) if keys else 0)
    if first_bytes > slots.layout.page_bytes:
        return None
    allocator, slot_bytes = slots.allocator, object_slot_bytes(first_bytes)
    taken = allocator.take(slot_bytes, count)
    header = header_of(item, spec, SlotState.WRITING, session, put_id)
    generation = slots.new_generation(count)
    columns = (header, generation, slot_bytes, item.lengths, item.hashes)
    if len(taken) < count or name_slots(slots, taken, *columns, keys=keys, by_class=True) < 0:
        slots.return_generations(generation)
        allocator.give(taken)
        return None
    slots.count_writing(taken, 1)
    generations = np.arange(generation, generation + count, dtype=np.uint64)
    statuses, doomed = np.zeros(count, dtype=np.uint8), np.zeros(count, dtype=np.bool_)
    return Put(session, put_id, statuses, taken, generations, doomed, item=item)
