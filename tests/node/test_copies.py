"""Copies that a node was ordered to make: whatever the order says and whatever happens meanwhile, no slot is lost."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.node_info import node_info
from support.node_sink import IndexSink
from support.soak import SOAK

from moonpool.schemas.keyspace import KeyspaceSpec, Kind, object_hash, objects_keyspace
from moonpool.schemas.messages import Copied, CopyOrder, Entries, ListKeys, Status
from moonpool.schemas.packed import join_hashes, pack_u32, pack_u64, split_hashes
from moonpool.store_client.node.copies import BLOCKS_MAX, Copies, CopyHooks
from moonpool.store_client.node.copy_source import FakeSource
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.drops import hash_set
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.listing import list_keys
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.reports import ReportStream

SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="model", shard_bytes=(8192,))
HASHES = [hashlib.sha256(bytes([at])).digest() for at in range(12)]
PEER = node_info("peer", capacity_bytes=1 << 20, page_bytes=1 << 18)


class Rig:
    """A node of a few pages, and a source that has all of the chain."""

    def __init__(self, pages: int = 4) -> None:
        self.sink = IndexSink()
        self.core = NodeCore(HeapMemory(Layout(64 << 10, pages)), self.sink)
        self.source = FakeSource()
        self.source.payloads = {100 + at: bytes([at]) * 8192 for at in range(12)}
        self.epoch = 7
        hooks = CopyHooks(self.core_register, lambda shard, epoch: epoch >= self.epoch, itertools.count(1))
        self.copies = Copies(self.core, self.sink, self.source, hooks)

    def core_register(self, spec: KeyspaceSpec) -> bytes:
        with self.core.lock:
            return self.core.register(spec)

    def carry_out(self, order: CopyOrder) -> bytes | None:
        """The statuses that it was told of; None: nothing was told."""
        before = len(self.told(Copied))
        self.copies.offer(order)
        self.copies.work_off()
        self.core.validate()
        assert not self.core.writers.all_puts(), "a put was left open"
        told = self.told(Copied)[before:]
        return told[0].statuses if told else None

    def told(self, kind: type[Any]) -> list[Any]:
        return [op for op in self.sink.ops if isinstance(op, kind)]


def order(number: int = 1, blocks: range = range(4), **changes: object) -> CopyOrder:
    """To copy some blocks of the chain."""
    plain = CopyOrder(
        number,
        7,
        SPEC,
        PEER,
        0,
        pack_u32(list(blocks)),
        join_hashes(HASHES[at] for at in blocks),
        join_hashes(HASHES[at - 1] if at else bytes(32) for at in blocks),
        pack_u32([100 + at for at in blocks]),
        pack_u64([1000 + at for at in blocks]),
        pack_u64([8192] * len(blocks)),
    )
    return msgspec.structs.replace(plain, **changes)


def test_what_was_copied_is_told_as_such_and_holds_the_bytes() -> None:
    rig = Rig()
    assert rig.carry_out(order()) == bytes([Status.OK] * 4)
    (entries,) = rig.told(Entries)
    assert entries.copied and split_hashes(entries.hashes, 32) == HASHES[:4]
    assert split_hashes(entries.parents, 32) == [bytes(32), *HASHES[:3]]
    slots = sorted(rig.sink.index.items())
    layout, sizes = rig.core.slots.layout, rig.core.slots.allocator.slot_bytes
    for slot, entry in slots:
        start = (
            layout.data_offset + (slot >> 16) * layout.page_bytes + (slot & 0xFFFF) * int(sizes[slot >> 16])
        )
        payload = rig.core.slots.data[start : start + entry.length].tobytes()
        assert payload == bytes([HASHES.index(entry.block_hash)]) * 8192


OBJECTS = objects_keyspace()
KEYS = ["a key", "another", "third"]


def order_of_objects(spec: KeyspaceSpec = OBJECTS) -> CopyOrder:
    """To copy three objects with the names KEYS."""
    return CopyOrder(
        1,
        7,
        spec,
        PEER,
        0,
        b"",
        join_hashes(map(object_hash, KEYS)),
        b"",
        pack_u32([5, 6, 7]),
        pack_u64([1, 2, 3]),
        pack_u64([5, 0, 7]),
    )


def rig_of_objects(*told: str) -> Rig:
    """The source has the three, and says that they are named so."""
    rig = Rig()
    rig.source.payloads = {5: b"value", 6: b"", 7: b"another"}
    rig.source.keys = dict(zip((5, 6, 7), told, strict=True))
    return rig


def test_names_of_objects_come_along() -> None:
    rig = rig_of_objects(*KEYS)
    assert rig.carry_out(order_of_objects()) == bytes([Status.OK] * 3)
    assert sorted(list_keys(rig.core.slots, ListKeys(OBJECTS.digest())).keys) == sorted(KEYS)


@pytest.mark.parametrize("told", [KEYS[0], "", "another\0", "\ufffd"])
def test_an_object_under_another_name_is_not_taken(told: str) -> None:
    rig = rig_of_objects(KEYS[0], told, KEYS[2])
    statuses = [Status.OK, Status.FAILED, Status.OK]
    assert rig.carry_out(order_of_objects()) == bytes(statuses)
    assert sorted(list_keys(rig.core.slots, ListKeys(OBJECTS.digest())).keys) == sorted([KEYS[0], KEYS[2]])
    assert rig.core.slots.committed == 2


def test_names_elsewhere_are_no_hashes_of_texts() -> None:
    other = KeyspaceSpec(kind=Kind.FLAT, name="of any size", shard_bytes=(0,), hash_bytes=16)
    assert rig_of_objects("", "", "text").carry_out(order_of_objects(other)) == bytes([Status.OK] * 3)


def test_objects_that_are_gone_are_told_as_such() -> None:
    rig = rig_of_objects(KEYS[0], "", KEYS[2])
    del rig.source.payloads[6]
    assert rig.carry_out(order_of_objects()) == bytes([Status.OK, Status.MISSING, Status.OK])


def test_a_source_that_has_lost_some_gives_the_others() -> None:
    rig = Rig()
    del rig.source.payloads[102]
    statuses = rig.carry_out(order())
    assert statuses == bytes([Status.OK, Status.OK, Status.MISSING, Status.OK])
    assert rig.core.slots.committed == 3


def test_a_node_without_room_says_so_and_evicts_nothing() -> None:
    rig = Rig(pages=1)
    assert rig.carry_out(order(1, range(8))) == bytes([Status.OK] * 8)
    assert rig.carry_out(order(2, range(8, 12))) == bytes([Status.NO_SPACE] * 4)
    assert rig.core.slots.committed == 8


def test_an_order_is_carried_out_once() -> None:
    rig = Rig()
    assert rig.carry_out(order()) is not None
    assert rig.carry_out(order()) is None
    assert rig.core.slots.committed == 4


def test_an_order_of_a_deposed_master_is_not_obeyed_even_when_it_waited() -> None:
    rig = Rig()
    rig.copies.offer(order())
    rig.epoch = 8
    rig.copies.work_off()
    assert rig.core.slots.committed == 0 and rig.told(Copied)[0].statuses == bytes([Status.GONE] * 4)


@pytest.mark.parametrize("waiting", [True, False])
def test_a_removal_hits_copies_that_are_on_their_way(waiting: bool) -> None:
    """Else a block that its master has forgotten would be back."""
    rig = Rig()

    def remove() -> None:
        with rig.core.lock:
            rig.copies.cancel(0, SPEC.digest())
            rig.core.drops.sweep(SPEC.digest(), hash_set(HASHES[0], 32), 0)

    rig.copies.offer(order())
    if waiting:
        remove()
    else:
        rig.source.meanwhile = remove
    rig.copies.work_off()
    rig.core.validate()
    assert rig.core.slots.committed == 0
    rig.source.meanwhile = lambda: None
    assert rig.carry_out(order(2)) == bytes([Status.OK] * 4), "later ones are not concerned"


garbage = st.fixed_dictionaries(
    {},
    optional={
        "rank": st.integers(-3, 1 << 40),
        "positions": st.sampled_from((b"", b"x", bytes(16), b"\xff" * 16)),
        "hashes": st.binary(max_size=200),
        "parents": st.sampled_from((b"", bytes(128), bytes(64))),
        "slots": st.sampled_from((b"", b"abc", b"\xff" * 16, bytes(4 * BLOCKS_MAX + 4))),
        "generations": st.sampled_from((b"", b"\xff" * 32, bytes(8))),
        "lengths": st.sampled_from((b"", b"\xff" * 32, pack_u64([8192, 1, 0, 1 << 62]), pack_u64([0] * 4))),
        "shard": st.sampled_from((0, 3, 511, 1 << 20, -1)),
        "spec": st.just(KeyspaceSpec(kind=Kind.CHAINED, name="other", shard_bytes=(4096, 0))),
    },
)


@settings(derandomize=True, deadline=None, max_examples=100 * SOAK)
@given(garbage)
def test_no_order_leaves_anything_behind(changes: dict[str, object]) -> None:
    rig = Rig()
    statuses = rig.carry_out(order(**changes))
    assert statuses is not None
    assert rig.core.slots.committed == statuses.count(Status.OK)
    assert rig.carry_out(order(2, range(4, 8))) == bytes([Status.OK] * 4), "the node goes on"


def test_the_queue_is_bounded() -> None:
    rig = Rig()
    for number in range(200):
        rig.copies.offer(order(number))
    failed = [op for op in rig.told(Copied) if Status.OK not in op.statuses]
    assert len(failed) == 200 - rig.copies.facts()["copy_orders_waiting"] > 0


def test_a_stream_that_starts_again_tells_the_answer_again() -> None:
    """Ops that no inventory repeats are carried over."""

    class Nothing:
        done = True

        def next_entries(self) -> list[Entries]:
            return []

    stream = ReportStream(b"s", lambda: Nothing(), iter(range(1, 9)).__next__)  # type: ignore[arg-type,return-value]
    stream.connect(7)
    assert stream.next_report() is not None
    stream.emit(Copied(3, bytes(1)))
    stream.restart()
    report = stream.next_report()
    assert report is not None and Copied(3, bytes(1)) in report.ops
