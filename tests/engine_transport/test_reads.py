"""Reads by address: what is accepted, and what becomes of memory that a failed one may still write to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from client.chains import Engine
from engine_transport.segments import BLOCK_BYTES, OBJECTS, FakeNode, read_of
from support.payloads import chain_hashes
from support.waiting import at_most, soon, wait_until

from moonpool.schemas.messages import BeginItem, Status
from moonpool.schemas.packed import pack_u64
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.raw_memory import address_of

HASHES = chain_hashes("prompt", 40)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    made = FakeNode()
    yield made
    made.close()
    made.core.validate()
    assert list(made.engine.ranges) == [made.info.engine_base]  # everything else was taken back


@pytest.mark.parametrize("pieces", [1, 3, 128])
def test_right_bytes_in_any_number_of_pieces(node: FakeNode, pieces: int) -> None:
    slots, generations = node.put_blocks(HASHES)
    engine = Engine(len(HASHES), BLOCK_BYTES, pieces)
    statuses = node.transport.read(read_of(HASHES, slots, generations, engine.fragments), soon())
    assert statuses.tolist() == [Status.OK] * len(HASHES)
    assert not engine.wrong(HASHES, 0, statuses)


def test_neighbouring_slots_travel_together(node: FakeNode) -> None:
    slots, generations = node.put_blocks(HASHES)
    engine = Engine(len(HASHES), BLOCK_BYTES)
    node.transport.read(read_of(HASHES, slots, generations, engine.fragments), soon())
    assert node.engine.reads == [1, 1 + 1, 1]  # the head; all payloads with the head; all headers


def test_another_generation_place_or_hash_is_a_miss(node: FakeNode) -> None:
    slots, generations = node.put_blocks(HASHES)
    asked_slots, asked_generations, asked_hashes = slots.copy(), generations.copy(), list(HASHES)
    asked_generations[3] += np.uint64(1)
    asked_slots[4], asked_slots[5] = 5 << 16, (1 << 32) - 1  # a page without a slot size, a page that isn't
    asked_hashes[6] = HASHES[7]
    engine = Engine(len(HASHES), BLOCK_BYTES)
    statuses = node.transport.read(
        read_of(asked_hashes, asked_slots, asked_generations, engine.fragments), soon()
    )
    expected = [Status.OK] * len(HASHES)
    expected[3:7] = [Status.MISSING] * 4
    assert statuses.tolist() == expected


def test_a_slot_that_changes_hands_after_its_payload_was_read_is_a_miss(node: FakeNode) -> None:
    slots, generations = node.put_blocks(HASHES)
    others = chain_hashes("other", 40)

    def evict(number: int) -> None:
        if number == 2:  # the payloads are here, the headers aren't yet
            node.free(slots)
            node.put_blocks(others)

    node.engine.before_read = evict
    engine = Engine(len(HASHES), BLOCK_BYTES)
    statuses = node.transport.read(read_of(HASHES, slots, generations, engine.fragments), soon())
    assert statuses.tolist() == [Status.MISSING] * len(HASHES)
    assert not any(layer.any() for layer in engine.layers)


def test_a_page_that_was_cut_anew_is_read_by_its_new_slot_size(node: FakeNode) -> None:
    names = [one[:16] for one in chain_hashes("objects", 6)]
    item = BeginItem(OBJECTS.digest(), 0, 0, b"", b"".join(names), pack_u64([100_000] * 6))
    old, _ = node.put(item, [np.full(100_000, i, dtype=np.uint8) for i in range(6)])
    engine = Engine(5, BLOCK_BYTES)
    batch = read_of(HASHES[:5], old[:5], old[:5].astype(np.uint64), engine.fragments)
    assert (node.transport.read(batch, soon()) == Status.MISSING).all()
    node.free(old)
    slots, generations = node.put_blocks(HASHES[:5])
    assert slots.tolist() == old[:5].tolist()  # the same names for other places
    before = len(node.engine.reads)
    statuses = node.transport.read(read_of(HASHES[:5], slots, generations, engine.fragments), soon())
    assert statuses.tolist() == [Status.OK] * 5
    assert not engine.wrong(HASHES[:5], 0, statuses)
    assert len(node.engine.reads) - before == 3  # the payloads twice


def test_another_segment_at_the_address_is_no_segment(node: FakeNode) -> None:
    slots, generations = node.put_blocks(HASHES)
    node.memory[16] ^= 1  # of the segment id
    engine = Engine(len(HASHES), BLOCK_BYTES)
    statuses = node.transport.read(read_of(HASHES, slots, generations, engine.fragments), soon())
    assert statuses.tolist() == [Status.FAILED] * len(HASHES)
    node.memory[16] ^= 1


def test_rotten_bytes_are_corrupt_where_a_checksum_is_known(node: FakeNode) -> None:
    slots, generations = node.put_blocks(HASHES)
    rows = node.core.slots.rows(slots)
    node.core.slots.headers.fields["checksum"][rows] = 1
    engine = Engine(len(HASHES), BLOCK_BYTES)
    statuses = node.transport.read(read_of(HASHES, slots, generations, engine.fragments), soon())
    assert statuses.tolist() == [Status.CORRUPT] * len(HASHES)


def test_a_failed_read_costs_its_block_and_nothing_else(node: FakeNode) -> None:
    slots, generations = node.put_blocks(HASHES)
    engine = Engine(len(HASHES), BLOCK_BYTES)
    batch = read_of(HASHES, slots, generations, engine.fragments)
    for failures in range(1, 7):  # more than there are blocks
        node.engine.failing = True
        assert (node.transport.read(batch, soon()) == Status.FAILED).all()
        assert node.access.landing.given_up == failures
        node.engine.failing = False
        assert (node.transport.read(batch, soon()) == Status.OK).all()


def test_an_unreachable_node_costs_no_block(node: FakeNode) -> None:
    slots, generations = node.put_blocks(HASHES)
    engine = Engine(len(HASHES), BLOCK_BYTES)
    batch = read_of(HASHES, slots, generations, engine.fragments)
    node.engine.unreachable = True
    assert (node.transport.read(batch, soon()) == Status.FAILED).all()
    node.engine.unreachable = False
    assert (node.transport.read(batch, soon()) == Status.OK).all()
    assert node.access.landing.given_up == 0


def test_a_silent_engine_costs_one_deadline_and_then_nothing(node: FakeNode) -> None:
    slots, generations = node.put_blocks(HASHES)
    engine = Engine(len(HASHES), BLOCK_BYTES)
    batch = read_of(HASHES, slots, generations, engine.fragments)
    assert (node.transport.read(batch, soon()) == Status.OK).all()
    for layer in engine.layers:
        layer[:] = 0
    go_on, came_back = threading.Event(), threading.Event()

    def be_silent(number: int) -> None:
        assert go_on.wait(60)
        came_back.set()

    node.engine.before_read = be_silent
    node.engine.failing = True
    start_s = time.monotonic()
    assert (node.transport.read(batch, start_s + 2.0) == Status.FAILED).all()
    assert 1.9 < time.monotonic() - start_s < at_most(2.0)
    start_s = time.monotonic()
    assert (node.transport.read(batch, start_s + 20) == Status.FAILED).all()  # the call before isn't back
    assert time.monotonic() - start_s < at_most(0.1)
    node.engine.failing = False
    node.engine.before_read = lambda number: None
    go_on.set()
    assert came_back.wait(60)
    wait_until(lambda: not node.transport._calls.stuck)
    assert not any(layer.any() for layer in engine.layers)
    assert (node.transport.read(batch, soon()) == Status.OK).all()


def test_an_object_larger_than_any_page_is_too_large(node: FakeNode) -> None:
    memory = np.zeros((64 << 20) + 1, dtype=np.uint8)
    into = Fragments.lists([[address_of(memory)]], [[len(memory)]])
    batch = read_of(HASHES[:1], np.zeros(1, np.uint32), np.ones(1, np.uint64), into)
    assert node.transport.read(batch, soon()).tolist() == [Status.TOO_LARGE]
