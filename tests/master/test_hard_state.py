"""The mirror of hard state: what it says to write is what a fresh mirror reads back, in any order of requests."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moonpool.master.hard_state import HardState
from moonpool.master.recorder import Recorder, batches
from moonpool.master.store import records
from moonpool.master.store.base import Condition, Delete, Put, Write
from moonpool.master.store.memory import MemoryStore
from moonpool.master.store.records import (
    CLUSTER_WIDE,
    DrainRecord,
    RemovalRecord,
    ReplicaRecord,
    TenantRecord,
)
from moonpool.schemas.errors import CorruptStore, StaleEpoch
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace
from moonpool.schemas.messages import DropList

HASHES = st.sampled_from([bytes([number]) * 16 for number in range(4)])
SHARDS = st.integers(0, 1)
SEGMENTS = st.sampled_from([b"segment-1", b"segment-2"])
KEYSPACE = objects_keyspace().digest()


def picture(state: HardState) -> object:
    removals = [
        (shard, segment, state.removals(shard, segment))
        for shard in (0, 1)
        for segment in (b"segment-1", b"segment-2")
    ]
    return (
        state.keyspaces, state.tenants, state.drains, state.replicas,
        sorted(state.pins(0)), sorted(state.pins(1)), removals,
    )  # fmt: skip


class HardStateMachine(RuleBasedStateMachine):
    """`stored` is what a store would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.state = HardState()
        self.stored: dict[bytes, bytes] = {}
        self.pinned: dict[tuple[int, bytes], int] = {}
        self.open: list[tuple[int, bytes, int]] = []

    def commit(self, writes: list[Write]) -> None:
        for write in writes:
            if isinstance(write, Put):
                self.stored[write.key] = write.value
            elif isinstance(write, Delete):
                del self.stored[write.key]
        self.state.apply(writes)

    @rule(tenant=st.sampled_from(["a", "b/c", "ü"]))
    def register(self, tenant: str) -> None:
        spec = objects_keyspace(tenant)
        self.commit(self.state.register(spec))
        assert self.state.register(spec) == []

    @rule(shard=SHARDS, hashes=st.lists(HASHES, max_size=3), until_ms=st.sampled_from([0, 10, 20]))
    def pin(self, shard: int, hashes: list[bytes], until_ms: int) -> None:
        self.commit(self.state.pin(shard, KEYSPACE, hashes, until_ms))
        for one in hashes:
            known = self.pinned.get((shard, one))
            longer = known is None or (known and (until_ms == 0 or until_ms > known))
            self.pinned[shard, one] = until_ms if longer else (known or 0)

    @rule(shard=SHARDS, hashes=st.lists(HASHES, max_size=3))
    def unpin(self, shard: int, hashes: list[bytes]) -> None:
        self.commit(self.state.unpin(shard, KEYSPACE, hashes))
        for one in hashes:
            self.pinned.pop((shard, one), None)

    @rule(now_ms=st.sampled_from([9, 10, 25]))
    def expire(self, now_ms: int) -> None:
        for writes in self.state.expired(now_ms, 0, 100).values():
            self.commit(writes)
        self.pinned = {name: until for name, until in self.pinned.items() if not 0 < until <= now_ms}

    @rule(shard=SHARDS, segment=SEGMENTS)
    def remove(self, shard: int, segment: bytes) -> None:
        drops = [DropList(KEYSPACE, b"\0\0", bytes(16), bytes(4), bytes(8))]
        number, writes = self.state.remove(
            shard, segment, RemovalRecord("n", 5, drops, KEYSPACE, bytes(16), False)
        )
        assert writes[0].key not in self.stored  # type: ignore[union-attr]
        self.commit(writes)
        self.open.append((shard, segment, number))

    @rule()
    def confirm(self) -> None:
        if self.open:
            self.commit(self.state.removed(*self.open.pop(0)))

    @rule(node=st.sampled_from(["n", "m/1"]))
    def others(self, node: str) -> None:
        self.commit([Put(records.drain_key(node), records.encode(DrainRecord(1)))])
        self.commit([Put(records.tenant_key(node), records.encode(TenantRecord(5)))])
        self.commit([Put(records.replicas_key(KEYSPACE), records.encode(ReplicaRecord(2)))])
        self.commit([Delete(records.drain_key(node))])

    @invariant()
    def a_fresh_mirror_is_equal(self) -> None:
        self.state.validate()
        fresh = HardState()
        for key, value in self.stored.items():
            fresh.put(key, value)
        assert picture(fresh) == picture(self.state)
        pins = {(shard, one): until for shard in (0, 1) for _, one, until in self.state.pins(shard)}
        assert pins == self.pinned


TestHardState = HardStateMachine.TestCase
TestHardState.settings = settings(derandomize=True, deadline=None, max_examples=50, stateful_step_count=20)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"pins/00000/aa", records.encode(records.PinRecord(1))),
        (b"pins/00000/aa/bb", records.encode(DrainRecord(1))),
        (b"drains/n", b"\xff"),
        (b"unheard-of/n", records.encode(DrainRecord(1))),
        (b"drains/n", b"\x92\xa7drain/9\x01"),
    ],
)
def test_what_cannot_be_read_says_where(key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptStore, match="metadata store"):
        HardState().put(key, value)


async def test_a_recorder_writes_before_it_returns_and_loads_all(tmp_path: object) -> None:
    store = MemoryStore()
    recorder = Recorder(store, 5.0, durable=True)
    spec = KeyspaceSpec(kind=Kind.CHAINED, name="m", shard_bytes=(1,), hash_bytes=16)
    await recorder.record(recorder.state.register(spec))
    hashes = [number.to_bytes(16, "little") for number in range(300)]
    await recorder.record(recorder.state.pin(3, spec.digest(), hashes, 0), 3)
    again = Recorder(store, 5.0, durable=True)
    for kind in CLUSTER_WIDE:
        again.state.apply((await again.news(kind))[0])
    assert again.state.keyspaces == {spec.digest(): spec}
    assert list(again.state.pins(3)) == []
    await again.own(3)
    assert sorted(one for _, one, _ in again.state.pins(3)) == sorted(hashes)
    recorder.record_later(3, recorder.state.unpin(3, spec.digest(), hashes))
    async with asyncio.timeout(30):
        while (await store.read(b"pins/", timeout_s=1)).records:
            await asyncio.sleep(0.01)
    await recorder.close()


async def test_a_deposed_owner_writes_nothing() -> None:
    store = MemoryStore()
    await store.commit([Put(b"shards/3/epoch", b"8")], timeout_s=1)
    recorder = Recorder(
        store, 5.0, durable=True, fence=lambda shard: [Condition(b"shards/%d/epoch" % shard, value=b"7")]
    )
    with pytest.raises(StaleEpoch):
        await recorder.record(recorder.state.pin(3, KEYSPACE, [bytes(16)], 0), 3)
    assert list(recorder.state.pins(3)) == []
    assert not (await store.read(b"pins/", timeout_s=1)).records
    await recorder.close()


def test_batches_fit_a_commit() -> None:
    writes: list[Write] = [Put(b"%d" % number, bytes(100_000)) for number in range(20)]
    writes += [Delete(b"x%d" % number) for number in range(200)]
    cut = batches(writes)
    assert [write for batch in cut for write in batch] == writes
    assert all(len(batch) <= 64 for batch in cut)
    assert max(sum(len(one.value) for one in batch if isinstance(one, Put)) for batch in cut) <= 524_288
