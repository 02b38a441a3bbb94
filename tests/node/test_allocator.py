"""Allocator against a naive model: sets of slots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.stateful import stateful_settings

from moonpool.schemas.errors import InternalError
from moonpool.store_client.node.allocator import LARGER_MAX, SPARE, Allocator
from moonpool.store_client.node.layout import Layout

PAGE = 64 << 10
SIZES = [1024, 1152, 4096, 12288, 20480, 40960, 65536]


def make(pages: int = 8) -> Allocator:
    return Allocator(Layout(PAGE, pages), np.zeros(pages, dtype=np.uint32))


class AllocatorMachine(RuleBasedStateMachine):
    """The model: which slots are out, and of which size."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = make()
        self.out: dict[int, int] = {}
        self.no_headers = False
        self.allocator._reserve_headers = lambda *_: not self.no_headers

    def free_of(self, size: int, *, but_closed: bool = True) -> int:
        """Slots of a size that are free in its pages, by the model."""
        pages = {slot >> 16 for slot, other in self.out.items() if other == size}
        closed = self.allocator.closed_page if but_closed else -1
        per_page = self.allocator.layout.slots_per_page(size)
        used = {page: sum(slot >> 16 == page for slot in self.out) for page in pages if page != closed}
        return sum(per_page - count for count in used.values())

    @rule(size=st.sampled_from(SIZES), count=st.integers(0, 100), new_pages=st.booleans())
    def take(self, size: int, count: int, new_pages: bool) -> None:
        pages_used = len({slot >> 16 for slot in self.out})
        room = self.free_of(size)
        if new_pages and not self.no_headers:
            room += (8 - pages_used) * self.allocator.layout.slots_per_page(size)
            assert room == self.allocator.available(size)
        slots = self.allocator.take(size, count, new_pages=new_pages)
        assert len(slots) == min(count, room)
        for slot in slots.tolist():
            assert slot not in self.out
            assert slot & 0xFFFF < self.allocator.layout.slots_per_page(size)
            self.out[slot] = size

    @rule(size=st.sampled_from(SIZES), count=st.integers(0, 100))
    def take_larger(self, size: int, count: int) -> None:
        spare = self.allocator.free_bytes - 8 * PAGE // SPARE
        larger = {other for other in self.out.values() if size < other <= LARGER_MAX * size}
        room = sum(self.free_of(other) for other in larger)
        slots = self.allocator.take_larger(size, count).tolist()
        assert len(slots) <= min(count, room) and len(slots) == len(set(slots) - self.out.keys())
        for slot in slots:
            self.out[slot] = int(self.allocator.slot_bytes[slot >> 16])
            assert size < self.out[slot] <= LARGER_MAX * size
        taken_bytes = sum(self.out[slot] for slot in slots)
        assert taken_bytes <= max(0, spare)
        if len(slots) < min(count, room):  # only where little is left
            assert spare - taken_bytes < max(larger)

    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        if self.out:
            share = data.draw(st.sampled_from([1, 2, 5]))
            offset = data.draw(st.integers(0, share - 1))
            slots = sorted(self.out)[offset::share]
            self.allocator.give(np.array(slots, dtype=np.uint32))
            for slot in slots:
                del self.out[slot]

    @rule(data=st.data())
    def give_a_page(self, data: st.DataObject) -> None:
        if self.out:
            page = data.draw(st.sampled_from(sorted({slot >> 16 for slot in self.out})))
            slots = [slot for slot in self.out if slot >> 16 == page]
            self.allocator.give(np.array(slots, dtype=np.uint32))
            for slot in slots:
                del self.out[slot]

    @rule(failing=st.booleans())
    def lose_header_memory(self, failing: bool) -> None:
        self.no_headers = failing

    @rule(unwanted=st.sampled_from(SIZES), data=st.data())
    def empty_a_page(self, unwanted: int, data: st.DataObject) -> None:
        fixed = np.array(data.draw(st.lists(st.integers(0, 1), min_size=8, max_size=8)), dtype=np.int64)
        self.allocator.open_page()
        page = self.allocator.page_to_empty(fixed, unwanted)
        candidates = {}
        for candidate in {slot >> 16 for slot in self.out}:
            slots = [slot for slot in self.out if slot >> 16 == candidate]
            size = self.out[slots[0]]
            per_page = self.allocator.layout.slots_per_page(size)
            elsewhere = self.free_of(size) - (per_page - len(slots))
            spare = self.allocator.free_bytes - 8 * PAGE // SPARE
            if len(slots) * size * LARGER_MAX <= spare:
                larger = {other for other in self.out.values() if size < other <= LARGER_MAX * size}
                elsewhere += sum(self.free_of(other) for other in larger)
            if size != unwanted and not fixed[candidate] and elsewhere >= len(slots):
                candidates[candidate] = len(slots) * size
        assert (page is None) == (not candidates)
        if page is None:
            return
        assert candidates[page] == min(candidates.values())
        self.allocator.close_page(page)
        slots = [slot for slot in self.out if slot >> 16 == page]
        size = self.out[slots[0]]
        if data.draw(st.booleans()):
            places = self.allocator.take_or_larger(size, len(slots), new_pages=False)
            assert not (places >> 16 == page).any()
            assert len(places) == len(slots)
            self.allocator.give(np.array(slots, dtype=np.uint32))
            for slot in slots:
                del self.out[slot]
            self.out.update({slot: int(self.allocator.slot_bytes[slot >> 16]) for slot in places.tolist()})
            assert not self.allocator.slot_bytes[page]

    @rule()
    def open_again(self) -> None:
        self.allocator.open_page()

    @rule()
    def adopt(self) -> None:
        """A new allocator over the same page table knows the same slots."""
        old = self.allocator
        self.allocator = Allocator(old.layout, old.slot_bytes, lambda *_: not self.no_headers)
        for page in np.flatnonzero(old.slot_bytes).tolist():
            in_use = np.zeros(int(old.slots[page]), dtype=np.bool_)
            in_use[[slot & 0xFFFF for slot in self.out if slot >> 16 == page]] = True
            self.allocator.adopt_page(page, in_use)

    @invariant()
    def agrees(self) -> None:
        self.allocator.validate()
        assert self.allocator.used_bytes == sum(self.out.values())
        pages = {slot >> 16: size for slot, size in self.out.items()}
        assert {p: int(s) for p, s in enumerate(self.allocator.slot_bytes) if s} == pages
        assert self.allocator.pool_pages == 8 - len(pages)
        free_slots = sum(self.free_of(size, but_closed=False) * size for size in set(pages.values()))
        assert self.allocator.free_bytes == self.allocator.pool_pages * PAGE + free_slots


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = stateful_settings(20_000)


def test_a_batch_gets_neighbours() -> None:
    allocator = make()
    slots = allocator.take(4096, 32)
    assert slots.tolist() == [page << 16 | index for page in (0, 1) for index in range(16)]
    allocator.give(slots[3:9])
    assert allocator.take(4096, 6).tolist() == slots[3:9].tolist()


def test_a_slot_that_comes_back_twice_is_a_bug_that_shows() -> None:
    allocator = make()
    slots = allocator.take(65536, 1)
    allocator.give(slots)
    with pytest.raises(InternalError):
        allocator.give(slots)


def test_a_page_that_is_wholly_free_serves_any_size() -> None:
    allocator = make(1)
    slots = allocator.take(1024, 64)
    assert not len(allocator.take(4096, 1))
    allocator.give(slots)
    assert len(allocator.take(65536, 1)) == 1


def test_a_size_without_a_slot_in_a_page_gets_nothing() -> None:
    assert not len(make().take(PAGE + 4096, 1))
