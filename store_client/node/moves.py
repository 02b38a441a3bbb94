"""Emptying a page by moving what it holds to other pages of its size or a larger one, so that no size class keeps space for ever."""

from __future__ import annotations

import numpy as np

from moonpool.schemas.header import SLOT_INDEX_BITS, Headers, SlotState
from moonpool.schemas.messages import Moved
from moonpool.schemas.packed import U8, U32, U64
from moonpool.store_client.node.drops import Drops
from moonpool.store_client.node.headers import generations_in, hash_column, states_in, words_of
from moonpool.store_client.node.slots import Slots, by_keyspace, entries


class Moves:
    """A reader at the old place finds another header there and matches again; the master is told by `Moved`."""

    def __init__(self, slots: Slots, drops: Drops) -> None:
        self._slots = slots
        self._drops = drops

    def choose(self, unwanted_slot_bytes: int) -> bool:
        """Closes the page that can be emptied at the least cost. False where none can."""
        allocator = self._slots.allocator
        page = None
        if not (self._drops.sweeps or self._slots.sink.opening()):
            page = allocator.page_to_empty(self._slots.writing, unwanted_slot_bytes)
        if page is not None:
            allocator.close_page(page)
        return page is not None

    def step(self, budget_bytes: int) -> bool:
        """Moves up to `budget_bytes` (at least one slot) off the closed page. True: call again. The page is open
        again, or wholly free and in the pool, once this returns False."""
        allocator = self._slots.allocator
        page = allocator.closed_page
        if page < 0:
            return False
        slots = self._slots.page_slots(page)
        headers = self._slots.headers.snapshot(self._slots.rows(slots))
        held = np.flatnonzero(states_in(headers["word"]) == SlotState.COMMITTED)
        slot_bytes = int(allocator.slot_bytes[page])
        held = held[: max(1, budget_bytes // slot_bytes)]
        places = allocator.take_or_larger(slot_bytes, len(held), new_pages=False)
        if self._drops.sweeps or self._slots.sink.opening() or not len(places):
            allocator.give(places)
            allocator.open_page()
            return False
        moving = held[: len(places)]
        self._move(slots[moving], headers[moving], places, slot_bytes)
        if len(places) < len(held):
            allocator.open_page()
        return allocator.closed_page >= 0

    def _move(self, slots: U32, headers: Headers, places: U32, slot_bytes: int) -> None:
        source = self._page_data(int(slots[0]) >> SLOT_INDEX_BITS, slot_bytes)
        index, new_index = slots & 0xFFFF, places & 0xFFFF
        pages = places >> SLOT_INDEX_BITS
        for page in np.unique(pages).tolist():
            here = pages == page
            larger_bytes = int(self._slots.allocator.slot_bytes[page])
            self._page_data(page, larger_bytes)[new_index[here], :slot_bytes] = source[index[here]]
        old = generations_in(headers["word"])
        new = self._slots.new_generations(len(slots))
        moved = headers.copy()
        moved["word"] = words_of(SlotState.COMMITTED, new)
        self._slots.headers.place(self._slots.rows(places), moved)
        self._tell(slots, headers, old, places, new)
        self._slots.free(slots, old)
        without = headers["checksum"] == 0
        if without.any():
            self._slots.sink.written(places[without], new[without])

    def _tell(self, slots: U32, headers: Headers, old: U64, places: U32, new: U64) -> None:
        keyspaces, sink = self._slots.keyspaces, self._slots.sink
        for shard, op in entries(headers, slots, keyspaces):
            if sink.naming(
                shard
            ):  # the inventory may never come to the old place, and will not know the new one
                sink.emit(op, shard)
        for shard, digest, hash_bytes, index in by_keyspace(headers, keyspaces):
            moved = Moved(
                digest,
                headers["rank"][index].tobytes(),
                hash_column(headers[index], "block_hash", hash_bytes),
                slots[index].tobytes(),
                old[index].tobytes(),
                places[index].tobytes(),
                new[index].tobytes(),
            )
            sink.emit(moved, shard)
        self._drops.moved(slots, old, places, new)

    def _page_data(self, page: int, slot_bytes: int) -> U8:
        """A page's memory as (slots, slot bytes)."""
        layout = self._slots.layout
        start, count = layout.data_offset + page * layout.page_bytes, layout.slots_per_page(slot_bytes)
        return self._slots.data[start : start + count * slot_bytes].reshape(count, slot_bytes)
