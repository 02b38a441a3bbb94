"""Layout: pure arithmetic over every size that can be asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import HEADER_BYTES
from moonpool.store_client.node.layout import (
    ANNEX_BYTES,
    ANNEX_OFFSET,
    CLASS_BYTES_MIN,
    HEAD_BYTES,
    PAGE_BYTES_MAX,
    PAGE_TABLE_OFFSET,
    PAGES_MAX,
    Head,
    Layout,
    class_slot_bytes,
    fixed_slot_bytes,
    object_slot_bytes,
)

BOOT_ID = "0f0f0f0f-1111-2222-3333-444455556666"
seeded = settings(derandomize=True, deadline=None)


@seeded
@given(st.lists(st.integers(1, PAGE_BYTES_MAX), min_size=1, max_size=50))
def test_a_class_holds_its_objects_with_an_eighth_of_waste_at_most(sizes: list[int]) -> None:
    asked = np.array(sizes, dtype=np.uint64)
    classes = class_slot_bytes(asked)
    assert (classes >= asked).all()
    large = asked >= CLASS_BYTES_MIN
    assert ((classes - asked)[large] <= classes[large] / 8).all()
    assert (class_slot_bytes(classes) == classes).all()
    assert [class_slot_bytes(asked[i : i + 1])[0] for i in range(len(sizes))] == classes.tolist()


@pytest.mark.parametrize("size", [1 << exponent for exponent in range(10, 26)])
def test_a_power_of_two_and_its_key_take_hardly_more(size: int) -> None:
    assert object_slot_bytes(size) == size
    for key_bytes in (1, 64):
        slot_bytes = object_slot_bytes(size + key_bytes)
        assert slot_bytes - size <= max(64, min(size // 64, 4096))
    assert object_slot_bytes(size + 4097) == size * 9 // 8 or size < 1 << 16


def test_there_are_few_classes() -> None:
    every = class_slot_bytes(np.arange(1, 1 << 20, 7, dtype=np.uint64))
    assert len(np.unique(every)) <= 9 * 10 + 1
    assert (np.diff(every.astype(np.int64)) >= 0).all()


@seeded
@given(st.integers(1, PAGE_BYTES_MAX))
def test_fixed_slots_are_whole_kernel_pages(size: int) -> None:
    assert size <= fixed_slot_bytes(size) < size + 4096
    assert fixed_slot_bytes(size) % 4096 == 0


@seeded
@given(st.integers(1 << 20, 1 << 42))
def test_regions_never_overlap(size_bytes: int) -> None:
    layout = Layout.of(size_bytes)
    assert size_bytes - layout.page_bytes < layout.capacity_bytes <= size_bytes
    assert layout.header_offset == HEAD_BYTES
    headers_end = layout.header_offset + layout.page_count * layout.headers_per_page * HEADER_BYTES
    assert headers_end <= layout.data_offset
    assert layout.data_offset % (2 << 20) == 0
    assert layout.data_offset + layout.capacity_bytes <= layout.file_bytes
    assert layout.page_bytes // CLASS_BYTES_MIN <= layout.headers_per_page <= 1 << 16


def test_the_head_has_room_for_everything() -> None:
    assert PAGE_TABLE_OFFSET + 4 * PAGES_MAX <= ANNEX_OFFSET
    assert ANNEX_OFFSET + 2 * ANNEX_BYTES <= HEAD_BYTES
    assert len(Head(bytes(16), BOOT_ID, Layout.of(1 << 30)).pack()) <= 256


@pytest.mark.parametrize(
    ("size", "page", "field"),
    [(1 << 20, 1000, "page_size"), (1 << 20, 128 << 20, "page_size"), (1 << 10, 0, "size"), (0, 0, "size")],
)
def test_sizes_that_cannot_be(size: int, page: int, field: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        Layout.of(size, page)
    assert caught.value.facts["field"] == field


def test_pages_grow_with_the_segment() -> None:
    assert Layout.of(1 << 40).page_bytes == 64 << 20
    assert Layout.of(64 << 20).page_count == 32


@seeded
@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=40), st.data())
def test_found_slots_lie_inside_the_data(numbers: list[int], data: st.DataObject) -> None:
    layout = Layout.of(1 << 20, 64 << 10)
    table = np.array(
        data.draw(st.lists(st.sampled_from([0, 1024, 4096, 20480, 65536]), min_size=16, max_size=16)),
        dtype=np.uint32,
    )
    near = [((number >> 16) % 20) << 16 | (number & 0xFFFF) % 70 for number in numbers]
    slots = np.array(numbers + near, dtype=np.uint32)
    lengths = np.array([number % 70000 for number in numbers] * 2, dtype=np.uint64)
    offsets, inside = layout.find(slots, lengths, table)
    for slot, length, offset, ok in zip(
        slots.tolist(), lengths.tolist(), offsets.tolist(), inside.tolist(), strict=True
    ):
        page, index = slot >> 16, slot & 0xFFFF
        size = int(table[page]) if page < layout.page_count else 0
        assert ok == (size > 0 and index < layout.slots_per_page(size) and length <= size)
        start = layout.data_offset + page * layout.page_bytes
        assert offset == (start + index * size if ok else 0)
        assert not ok or offset + length <= start + layout.page_bytes


def test_a_head_is_read_back_or_not_at_all() -> None:
    head = Head(bytes(range(16)), BOOT_ID, Layout.of(1 << 30))
    packed = head.pack()
    assert Head.read(packed + bytes(4096)) == head
    assert Head.read(b"") is None
    assert Head.read(bytes(4096)) is None
    for index in range(len(packed)):
        broken = bytearray(packed)
        broken[index] ^= 0xFF
        found = Head.read(broken)
        assert found is None or found != head
