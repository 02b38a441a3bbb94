"""Headers of slots that were granted ahead: by the loop in C and by its double in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.node_sink import IndexSink

from moonpool.schemas.header import HEADER_BYTES, HEADER_DTYPE, SlotState, word_of
from moonpool.schemas.packed import pack_u64
from moonpool.store_client import native
from moonpool.store_client.node.keyspaces import Keyspaces
from moonpool.store_client.node.layout import Layout, object_slot_bytes
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.naming import name_slots
from moonpool.store_client.node.slots import Slots

needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")
SLOT = 5120
KEYS = [b"", "schlüssel".encode(), b"k" * 100]
LENGTHS = [SLOT, 5000, 4700]
HASHES = [bytes([i + 1]) * 16 for i in range(3)]


@pytest.fixture(params=[pytest.param(True, marks=needs_c), False], ids=["c", "python"])
def slots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Slots:
    monkeypatch.setattr(native, "HOT", request.param)
    return Slots(HeapMemory(Layout(64 << 10, 4)), Keyspaces(), IndexSink())


def template(state: SlotState = SlotState.COMMITTED) -> bytes:
    header = np.zeros(1, dtype=HEADER_DTYPE)
    header["word"] = word_of(state, 0)
    header["keyspace"], header["rank"], header["position"], header["session"] = 77, 3, 9, 1234
    return header.tobytes()


def named(slots: Slots, **changes: Any) -> tuple[int, np.ndarray[Any, Any]]:
    """The answer, and the headers of the three slots then."""
    numbers = slots.allocator.take(SLOT, 3)
    names = {"lengths": pack_u64(LENGTHS), "hashes": b"".join(HASHES), "keys": KEYS, "by_class": True}
    answer = name_slots(slots, numbers, template(), 40, SLOT, **{**names, **changes})
    return answer, slots.headers.snapshot(slots.rows(numbers))


def test_objects_get_their_names(slots: Slots) -> None:
    answer, headers = named(slots)
    assert answer == sum(LENGTHS)
    assert headers["word"].tolist() == [word_of(SlotState.COMMITTED, 40 + i) for i in range(3)]
    assert headers["length"].tolist() == LENGTHS
    assert headers["key_bytes"].tolist() == list(map(len, KEYS))
    assert headers["block_hash"].tolist() == HASHES and not any(headers["parent_hash"])
    for field, value in {"keyspace": 77, "rank": 3, "position": 9, "session": 1234}.items():
        assert headers[field].tolist() == [value] * 3
    data = slots.layout.data_offset
    for i, (length, key) in enumerate(zip(LENGTHS, KEYS, strict=True)):
        end = data + i * SLOT + length
        assert slots.data[end : end + len(key)].tobytes() == key


def test_a_chain_is_linked(slots: Slots) -> None:
    same = pack_u64([5000] * 3)
    _, headers = named(slots, lengths=same, keys=None, by_class=False, parent=b"p" * 16)
    assert headers["position"].tolist() == [9, 10, 11]
    assert headers["parent_hash"].tolist() == [b"p" * 16, *HASHES[:-1]]
    assert headers["block_hash"].tolist() == HASHES


def test_slots_without_names_have_headers_all_the_same(slots: Slots) -> None:
    numbers = slots.allocator.take(SLOT, 3)
    assert name_slots(slots, numbers, template(SlotState.WRITING), 7, SLOT, bytes(24)) == 0
    headers = slots.headers.snapshot(slots.rows(numbers))
    assert headers["word"].tolist() == [word_of(SlotState.WRITING, 7 + i) for i in range(3)]
    assert headers["session"].tolist() == [1234] * 3 and not any(headers["block_hash"])


@pytest.mark.parametrize(
    "changes",
    [
        {"lengths": pack_u64([SLOT, 5000, SLOT - 99])},
        {"lengths": pack_u64([SLOT + 1, 5000, 4700])},
        {"lengths": pack_u64([(1 << 64) - 1, 5000, 4700])},
        {"lengths": pack_u64([(1 << 64) - 50, 5000, 4700]), "keys": [b"x" * 100] * 3},
        {"lengths": pack_u64([SLOT, 5000, 100])},
    ],
    ids=["key", "one more", "top", "wraps around", "another class"],
)
def test_what_does_not_fit_changes_nothing(slots: Slots, changes: dict[str, Any]) -> None:
    before = slots.data.copy()
    answer, headers = named(slots, **changes)
    before[4096 : 4096 + 4] = slots.data[4096 : 4096 + 4]  # the page table
    assert answer == -1 and not headers["word"].any()
    assert (slots.data == before).all()


@needs_c
def test_columns_that_do_not_fit_each_other_are_refused() -> None:
    slots = Slots(HeapMemory(Layout(64 << 10, 4)), Keyspaces(), IndexSink())
    for changes in (
        {"hashes": b"".join(HASHES)[:-1]},
        {"keys": KEYS[:2]},
        {"lengths": pack_u64([*LENGTHS, 5000])},
        {"lengths": pack_u64(LENGTHS)[:-1]},
        {"parent": b"p" * 15},
        {"hashes": b"h" * 33 * 3},
    ):
        with pytest.raises(ValueError, match="fit"):
            named(slots, **changes)
    numbers = np.array([1 << 31, 0, 1], dtype=np.uint32)
    assert name_slots(slots, numbers, template(), 40, SLOT, pack_u64([5000] * 3)) == -1
    with pytest.raises(ValueError, match="fit"):
        name_slots(slots, numbers, template()[: HEADER_BYTES - 1], 40, SLOT, pack_u64([5000] * 3))


@needs_c
def test_classes_are_the_same_in_c() -> None:
    slots = Slots(HeapMemory(Layout(1 << 20, 4)), Keyspaces(), IndexSink())
    number = slots.allocator.take(1 << 20, 1)
    for size in [
        0,
        1,
        1023,
        1024,
        1025,
        1088,
        1089,
        1152,
        1153,
        4160,
        4161,
        65535,
        65536,
        65537,
        66560,
        66561,
        73729,
        266240,
        266241,
        700_001,
    ]:
        fits = [
            name_slots(slots, number, template(), 1, slot_bytes, pack_u64([size]), by_class=True) == size
            for slot_bytes in (object_slot_bytes(size), object_slot_bytes(size) + 1024)
        ]
        assert fits == [True, False], size
