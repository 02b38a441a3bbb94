"""Everything that a segment holds of one shard, read from its headers in bounded pieces."""

from __future__ import annotations

import numpy as np

from moonpool.schemas.header import SlotState
from moonpool.schemas.messages import Entries
from moonpool.schemas.packed import U32
from moonpool.store_client.node.headers import states_in
from moonpool.store_client.node.slots import Slots, entries

ROWS_MAX = 1024
PAGES_MAX = 256


class Inventory:
    """A walk through all pages. What is committed behind it was told live; what lies ahead will be read."""

    def __init__(self, slots: Slots, shard: int = 0) -> None:
        self._slots = slots
        self._shard = shard
        self._page = 0
        self._index = 0

    @property
    def done(self) -> bool:
        """Whether every page has been passed."""
        return self._page >= self._slots.layout.page_count

    def next_entries(self) -> list[Entries]:
        """The next committed slots, ROWS_MAX headers or PAGES_MAX pages at most. Also [] before the end."""
        slots: list[U32] = []
        rows_left = ROWS_MAX
        for page in self._pages_ahead():
            if not rows_left:
                break
            if page != self._page:
                self._page, self._index = page, 0
            here = self._slots.page_slots(page)[self._index : self._index + rows_left]
            slots.append(here)
            rows_left -= len(here)
            self._index += len(here)
            if self._index >= self._slots.allocator.slots[page]:
                self._page, self._index = page + 1, 0
        if not self._pages_ahead():
            self._page = self._slots.layout.page_count
        if not slots:
            return []
        every = np.concatenate(slots)
        rows = self._slots.rows(every)
        wanted = states_in(self._slots.headers.words[rows]) == SlotState.COMMITTED
        wanted &= self._slots.headers.fields["shard"][rows] == self._shard
        held = self._slots.discard_misfits(every[wanted])
        if not len(held):
            return []
        headers = self._slots.headers.snapshot(self._slots.rows(held))
        return [op for _, op in entries(headers, held, self._slots.keyspaces)]

    def _pages_ahead(self) -> list[int]:
        """The next pages that have a slot size, PAGES_MAX at most."""
        pages: list[int] = (np.flatnonzero(self._slots.allocator.slots[self._page :]) + self._page).tolist()
        return pages[:PAGES_MAX]


def keyspace_words_in_use(slots: Slots) -> set[int]:
    """The 64-bit keyspace words of all slots that aren't free."""
    used: set[int] = set()
    for page in np.flatnonzero(slots.allocator.slot_bytes).tolist():
        first = page * slots.layout.headers_per_page
        headers = slots.headers.fields[first : first + int(slots.allocator.slots[page])]
        held = states_in(headers["word"]) != SlotState.FREE
        used.update(np.unique(headers["keyspace"][held]).tolist())
    return used
