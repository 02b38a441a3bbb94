"""Which slots are free: pages serve one slot size at a time, and a wholly free page serves any."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import InternalError
from moonpool.schemas.header import SLOT_INDEX_BITS
from moonpool.schemas.packed import I64, U16, U32
from moonpool.store_client.node.layout import Layout

NO_SLOTS: U32 = np.zeros(0, dtype=np.uint32)
NO_SLOT = -1

LARGER_MAX = 4
"""So many times its size at most may the slot have that an object gets where no page has its own size."""

SPARE = 8
"""Larger slots are taken only while more than this part of the segment is free: a pool with less gives up old objects."""


class Allocator:
    """Hands out slot numbers and takes them back, in batches. Knows nothing of what slots hold.

    `page_table` is the one in the segment's head: it is changed before a page's first slot is handed out.
    `reserve_headers(page, slots)` makes the memory of a page's headers real; false: there is none.
    """

    def __init__(
        self, layout: Layout, page_table: U32, reserve_headers: Callable[[int, int], bool] = lambda *_: True
    ) -> None:
        self.layout = layout
        self.slot_bytes = page_table
        self.slots: I64 = np.zeros(layout.page_count, dtype=np.int64)
        self.free: I64 = np.zeros(layout.page_count, dtype=np.int64)
        self.used_bytes = 0
        self.free_slot_bytes = 0
        self._reserve_headers = reserve_headers
        self._stacks: list[U16 | None] = [None] * layout.page_count
        self._pool = [page for page in reversed(range(layout.page_count)) if not page_table[page]]
        # Pages with free slots by slot size, the one used last at the end: dicts serve as ordered sets.
        self._open: dict[int, dict[int, None]] = {}
        self._closed = -1

    # ------------------------------------------------------------ slots

    def take(self, slot_bytes: int, count: int, *, new_pages: bool = True) -> U32:
        """Up to `count` slots of one size, neighbours where it can be; fewer where space is short."""
        parts: list[U32] = []
        missing = count
        pages = self._open.setdefault(slot_bytes, {})
        while missing and (pages or (new_pages and self._cut_page(slot_bytes))):
            page = next(reversed(pages))
            parts.append(self._pop(page, min(missing, int(self.free[page]))))
            missing -= len(parts[-1])
            if not self.free[page]:
                del pages[page]
        self._account((missing - count) * slot_bytes)
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else NO_SLOTS

    def take_one(self, slot_bytes: int) -> int:
        """One slot, or NO_SLOT: a tenth of the time of an array of one."""
        pages = self._open.setdefault(slot_bytes, {})
        if not pages and not self._cut_page(slot_bytes):
            return NO_SLOT
        page = next(reversed(pages))
        stack, top = self._stacks[page], int(self.free[page]) - 1
        assert stack is not None
        self.free[page] = top
        if not top:
            del pages[page]
        self.used_bytes += slot_bytes
        self.free_slot_bytes -= slot_bytes
        return page << SLOT_INDEX_BITS | int(stack[top])

    def take_or_larger(self, slot_bytes: int, count: int, *, new_pages: bool = True) -> U32:
        """Up to `count` slots of one size, and then of larger ones."""
        taken = self.take(slot_bytes, count, new_pages=new_pages)
        if len(taken) < count:
            taken = np.concatenate([taken, self.take_larger(slot_bytes, count - len(taken))])
        return taken

    def take_larger(self, slot_bytes: int, count: int) -> U32:
        """Up to `count` free slots of the next larger sizes, in pages that are there. Sizes outnumber pages in small pools,
        and one object of an unusual size must not cost a page's worth of others while most of the segment is free."""
        parts = [NO_SLOTS]
        missing = count
        for size in sorted(self._open):
            if missing and slot_bytes < size <= LARGER_MAX * slot_bytes:
                parts.append(self.take(size, min(missing, self._spare_bytes // size), new_pages=False))
                missing -= len(parts[-1])
        return np.concatenate(parts)

    @property
    def _spare_bytes(self) -> int:
        return max(0, self.free_bytes - self.layout.capacity_bytes // SPARE)

    def give(self, slots: U32) -> None:
        """Takes slots back, each exactly once. A page that is wholly free then goes back to the pool."""
        if not len(slots):
            return
        ordered = np.sort(slots)
        pages = (ordered >> SLOT_INDEX_BITS).astype(np.int64)
        starts = np.flatnonzero(np.diff(pages, prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(ordered)], strict=True):
            self._push(int(pages[start]), ordered[start:stop].astype(np.uint16))

    def available(self, slot_bytes: int) -> int:
        """How many slots of that size could be taken now."""
        in_pages = sum(int(self.free[page]) for page in self._open.get(slot_bytes, ()))
        return in_pages + len(self._pool) * self.layout.slots_per_page(slot_bytes)

    @property
    def free_bytes(self) -> int:
        """Bytes of free slots and of the page pool. What a page loses at its end counts as used."""
        return self.free_slot_bytes + len(self._pool) * self.layout.page_bytes

    @property
    def pool_pages(self) -> int:
        """Pages without a slot size."""
        return len(self._pool)

    # ------------------------------------------------------------ emptying pages

    def page_to_empty(self, fixed: I64, unwanted_slot_bytes: int) -> int | None:
        """The page whose slots can move to other pages, of its size or as `take_larger` has them, at the least cost, or None.

        `fixed`: per page, slots that may not move. Pages of `unwanted_slot_bytes` are no help.
        """
        sizes = self.slot_bytes.astype(np.int64)
        used = self.slots - self.free
        free = np.where(np.arange(len(sizes)) == self._closed, 0, self.free)
        kinds, kind = np.unique(sizes, return_inverse=True)
        free_of = np.bincount(kind, weights=free, minlength=len(kinds))
        serves = (kinds >= kinds[:, np.newaxis]) & (kinds <= LARGER_MAX * kinds[:, np.newaxis])
        larger = ((serves @ free_of)[kind] - free >= used) & (used * sizes * LARGER_MAX <= self._spare_bytes)
        fits = (sizes > 0) & (sizes != unwanted_slot_bytes) & (fixed == 0)
        fits &= larger | (free_of[kind] - free >= used)
        if not fits.any():
            return None
        return int(np.argmin(np.where(fits, used * sizes, np.iinfo(np.int64).max)))

    def close_page(self, page: int) -> None:
        """Hands out no more slots of this page. One page at a time: the one closed before is opened again."""
        self.open_page()
        self._closed = page
        self._open.get(int(self.slot_bytes[page]), {}).pop(page, None)

    def open_page(self) -> None:
        """The reverse, where the page wasn't freed meanwhile."""
        page, self._closed = self._closed, -1
        if page >= 0 and self.free[page]:
            self._open.setdefault(int(self.slot_bytes[page]), {})[page] = None

    @property
    def closed_page(self) -> int:
        """The page that is being emptied; -1 where none is."""
        return self._closed

    # ------------------------------------------------------------ adoption

    def adopt_page(self, page: int, in_use: NDArray[np.bool_]) -> None:
        """Takes over a page that the page table gave a slot size in an earlier life: which slots are in use."""
        slot_bytes = int(self.slot_bytes[page])
        free = np.flatnonzero(~in_use)[::-1].astype(np.uint16)
        stack = np.zeros(len(in_use), dtype=np.uint16)
        stack[: len(free)] = free
        self._stacks[page] = stack
        self.slots[page] = len(in_use)
        self.free[page] = len(free)
        self.used_bytes += (len(in_use) - len(free)) * slot_bytes
        self.free_slot_bytes += len(free) * slot_bytes
        if len(free) == len(in_use):
            self._release(page)
        elif len(free):
            self._open.setdefault(slot_bytes, {})[page] = None

    def lose_page(self, page: int) -> None:
        """The page table has a size for it that can't be; it starts again in the pool."""
        self.slot_bytes[page] = 0
        self._pool.append(page)

    # ------------------------------------------------------------ inside

    def _cut_page(self, slot_bytes: int) -> bool:
        """Gives a page of the pool that slot size."""
        slots = self.layout.slots_per_page(slot_bytes)
        if not slots or not self._pool or not self._reserve_headers(self._pool[-1], slots):
            return False
        page = self._pool.pop()
        self.slot_bytes[page] = slot_bytes
        self.slots[page] = self.free[page] = slots
        self._stacks[page] = np.arange(slots - 1, -1, -1, dtype=np.uint16)
        self.free_slot_bytes += slots * slot_bytes
        self._open.setdefault(slot_bytes, {})[page] = None
        return True

    def _pop(self, page: int, count: int) -> U32:
        stack = self._stacks[page]
        assert stack is not None
        top = int(self.free[page])
        self.free[page] = top - count
        # Sorted, so that a batch reads and writes its slots in the order of their addresses.
        slots: U32 = stack[top - count : top].astype(np.uint32)
        slots.sort()
        slots |= np.uint32(page << SLOT_INDEX_BITS)
        return slots

    def _push(self, page: int, indices: U16) -> None:
        stack, top, count = self._stacks[page], int(self.free[page]), len(indices)
        if stack is None or top + count > len(stack):
            raise InternalError(detail=f"page {page} got {count} slots back beside {top} free ones")
        stack[top : top + count] = indices[::-1]
        self.free[page] = top + count
        slot_bytes = int(self.slot_bytes[page])
        self._account(count * slot_bytes)
        if top + count == len(stack):
            self._release(page)
        elif page != self._closed:
            self._open.setdefault(slot_bytes, {})[page] = None

    def _release(self, page: int) -> None:
        slot_bytes = int(self.slot_bytes[page])
        self._open.get(slot_bytes, {}).pop(page, None)
        self.free_slot_bytes -= int(self.slots[page]) * slot_bytes
        self.slot_bytes[page] = 0
        self.slots[page] = self.free[page] = 0
        self._stacks[page] = None
        self._pool.append(page)
        if page == self._closed:
            self._closed = -1

    def _account(self, freed_bytes: int) -> None:
        self.used_bytes -= freed_bytes
        self.free_slot_bytes += freed_bytes

    def validate(self) -> None:
        """Raises AssertionError where the structure contradicts itself."""
        free_bytes = used_bytes = 0
        for page, stack in enumerate(self._stacks):
            slot_bytes, free = int(self.slot_bytes[page]), int(self.free[page])
            assert (stack is None) == (slot_bytes == 0) == (page in self._pool), page
            if stack is None:
                assert not self.slots[page] and not free and page != self._closed
                continue
            assert len(stack) == self.slots[page] == self.layout.slots_per_page(slot_bytes)
            assert 0 <= free < len(stack) and len(set(stack[:free].tolist())) == free, page
            assert free == 0 or int(stack[:free].max()) < len(stack)
            assert (page in self._open.get(slot_bytes, {})) == (free > 0 and page != self._closed), page
            free_bytes += free * slot_bytes
            used_bytes += (len(stack) - free) * slot_bytes
        assert (free_bytes, used_bytes) == (self.free_slot_bytes, self.used_bytes)
        assert len(set(self._pool)) == len(self._pool)
        assert sum(map(len, self._open.values())) <= self.layout.page_count
