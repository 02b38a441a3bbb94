"""The checksum thread, and checks of places that were reported bad."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import xxhash
from support.node_sink import IndexSink
from support.waiting import wait_until

from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Begin, BeginItem, Check, DropList, Granted
from moonpool.schemas.packed import U8, U32, U64, u32s, u64s
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.node import checksums
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.checksums import Checksums, compute, verify
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory

SPEC = KeyspaceSpec(kind=Kind.FLAT, name="state", shard_bytes=(5000,), hash_bytes=16)
DIGEST = SPEC.digest()


class Stored:
    """A core with objects, each full of its own bytes."""

    def __init__(self) -> None:
        self.core = NodeCore(HeapMemory(Layout(64 << 10, 8)), IndexSink())
        self.core.register(SPEC)
        self.core.open_session(SessionRecord(1, "/lock"))
        self.hashes = np.random.default_rng(0).bytes(16 * 20)
        granted = self.core.begin(1, Begin(1, 1, [BeginItem(DIGEST, 0, 0, b"", self.hashes)]), partial=False)
        assert isinstance(granted, Granted)
        self.slots, self.generations = u32s(granted.slots), u64s(granted.generations)
        for index in range(20):
            self.payload(index)[:] = np.random.default_rng(index).integers(0, 256, 5000)
        self.core.commit(1, [1])

    def payload(self, index: int) -> U8:
        start = int(self.core.slots.layout.data_offsets(self.slots[index : index + 1], 8192)[0])
        return self.core.slots.data[start : start + 5000]

    def sums(self, slots: U32 | None = None) -> list[int]:
        rows = self.core.slots.rows(self.slots if slots is None else slots)
        found: list[int] = self.core.slots.headers.snapshot(rows)["checksum"].tolist()
        return found

    def drop(self, count: int) -> None:
        drop = DropList(DIGEST, b"", b"", self.slots[:count].tobytes(), self.generations[:count].tobytes())
        self.core.drops.exact([drop])

    def check(self, index: int, **other: object) -> Check:
        facts: dict[str, object] = {
            "epoch": 1,
            "keyspace": DIGEST,
            "rank": 0,
            "block_hash": self.hashes[16 * index : 16 * index + 16],
            "slot": int(self.slots[index]),
            "generation": int(self.generations[index]),
        }
        return Check(**(facts | other))  # type: ignore[arg-type]


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def thread(stored: Stored) -> Iterator[Checksums]:
    made = Checksums()
    made.start(stored.core)
    yield made
    made.close()


def test_the_thread_computes_what_was_committed(stored: Stored, thread: Checksums) -> None:
    thread.push(stored.slots, stored.generations)
    wait_until(lambda: thread.computed >= 20)
    assert stored.sums() == [xxhash.xxh3_64_intdigest(stored.payload(index).data) for index in range(20)]
    assert thread.queued == 0


def test_slots_that_changed_meanwhile_are_left_alone(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_in_the_middle(objects: Fragments, wanted: U64, threads: int) -> U64:
        stored.drop(5)
        return np.full(objects.count, 77, dtype=np.uint64)

    monkeypatch.setattr(checksums, "sums", drop_in_the_middle)
    assert compute(stored.core, stored.slots, stored.generations) == 15
    assert stored.sums() == [0] * 5 + [77] * 15
    assert compute(stored.core, stored.slots[:5], stored.generations[:5]) == 0
    past = np.array([1 << 31], dtype=np.uint32), np.array([1], dtype=np.uint64)
    assert compute(stored.core, *past) == 0


def test_a_length_that_a_writer_has_made_of_a_header_leads_nowhere(stored: Stored) -> None:
    """Writers map the headers. What is summed lies inside the slot."""
    compute(stored.core, stored.slots, stored.generations)
    check = stored.check(3)
    assert verify(stored.core, check)
    for length in (1 << 40, (1 << 64) - 1):
        stored.core.slots.headers.fields["length"][stored.core.slots.rows(stored.slots[3:4])] = length
        assert compute(stored.core, stored.slots, stored.generations) == 20
        stored.core.slots.headers.fields["checksum"][stored.core.slots.rows(stored.slots[3:4])] = 7
        assert not verify(stored.core, check)


def test_the_queue_is_bounded(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "QUEUED_MAX", 30)
    idle = Checksums()
    idle.push(stored.slots, stored.generations)
    idle.push(stored.slots, stored.generations)
    assert (idle.queued, idle.skipped) == (20, 20)


def test_a_moved_object_keeps_its_checksum_or_gets_one(stored: Stored) -> None:
    sink = stored.core.slots.sink
    assert isinstance(sink, IndexSink)
    compute(stored.core, stored.slots[:12], stored.generations[:12])
    stored.drop(6)
    before = dict(sink.index)
    sink.unchecked.clear()
    assert stored.core.moves.choose(4096)
    while stored.core.moves.step(1 << 20):
        pass
    moved = [slot for slot in sink.index if slot not in before]
    assert moved
    sums = stored.sums(np.array(moved, dtype=np.uint32))
    without = [slot for slot, found in zip(moved, sums, strict=True) if not found]
    assert sorted(slot for slot, _ in sink.unchecked) == sorted(without)
    slots = np.array([slot for slot, _ in sink.unchecked], dtype=np.uint32)
    generations: U64 = np.array([generation for _, generation in sink.unchecked], dtype=np.uint64)
    assert compute(stored.core, slots, generations) == len(without)


def test_a_check_tells_good_from_bad(stored: Stored) -> None:
    assert verify(stored.core, stored.check(0))  # nothing to compare with yet, and all else agrees
    compute(stored.core, stored.slots, stored.generations)
    assert verify(stored.core, stored.check(0))
    stored.payload(0)[3] ^= 1
    assert not verify(stored.core, stored.check(0))
    assert not verify(stored.core, stored.check(1, block_hash=bytes(16)))
    assert not verify(stored.core, stored.check(1, rank=1))
    assert not verify(stored.core, stored.check(1, keyspace=bytes(16)))
    assert not verify(stored.core, stored.check(1, generation=10_000))
    assert not verify(stored.core, stored.check(1, slot=1 << 31))
    stored.drop(3)
    assert not verify(stored.core, stored.check(1))
