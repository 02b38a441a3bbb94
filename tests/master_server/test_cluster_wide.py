"""What one master of a cluster records for all of it, the others know too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from support.report_node import KEYSPACE, SPEC

from moonpool.master.core import MasterCore, Origin
from moonpool.master.hard_requests import HardRequests
from moonpool.master.recorder import Recorder
from moonpool.master.store.base import Delete, Put, Write
from moonpool.master.store.memory import MemoryStore
from moonpool.master.store.records import (
    CLUSTER_WIDE,
    DrainRecord,
    PinRecord,
    TenantRecord,
    drain_key,
    encode,
    pin_key,
    tenant_key,
)
from moonpool.schemas.clock import MonotonicClock
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import StoreFailed
from moonpool.schemas.messages import Drain, ListTenants, Message, RegisterKeyspace, SetTenant, Tenants

ADMIN = Origin("", "")
HASH = bytes(16)


class Master:
    """Its core and its hard state, over a store that others share."""

    def __init__(self, store: MemoryStore, quotas: str = "") -> None:
        settings = MasterSettings(quotas=quotas)
        self.core = MasterCore(shards=4, epoch=1, settings=settings, alone=False)
        self.hard = HardRequests(self.core, MonotonicClock(), Recorder(store, 5.0, durable=True))

    async def start(self) -> None:
        await self.hard.load()
        self.hard.cluster.follow()

    async def ask(self, message: Message) -> None:
        await self.hard.handle(message, ADMIN)

    def quotas(self) -> dict[str, int]:
        reply = self.core.handle(ListTenants(), 0.0, ADMIN).reply
        assert isinstance(reply, Tenants)
        return {one.tenant: one.quota_bytes for one in reply.tenants if one.quota_bytes}


class Fleet:
    """Masters over one store."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.masters: list[Master] = []

    async def start(self, quotas: str = "") -> Master:
        master = Master(self.store, quotas)
        self.masters.append(master)
        await master.start()
        return master


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    yield made
    for master in made.masters:
        await master.hard.cluster.close()
        await master.hard.recorder.close()
    await made.store.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def test_what_one_records_all_know(fleet: Fleet) -> None:
    first, second = await fleet.start(), await fleet.start("red=1KB,blue=2KB")
    assert second.quotas() == {"red": 1024, "blue": 2048}
    await first.ask(SetTenant("red", 700))
    await first.ask(SetTenant("blue", 0))
    await first.ask(RegisterKeyspace(SPEC))
    await fleet.store.commit([Put(drain_key("n1"), encode(DrainRecord(1)))], timeout_s=5)
    await until(lambda: second.quotas() == {"red": 700} and "n1" in second.hard.recorder.state.drains)
    assert second.hard.holds(RegisterKeyspace(SPEC))
    assert KEYSPACE in second.core.shards.specs_by_digest
    assert second.core.handle(Drain("n1", True), 0.0, ADMIN).reply.count == 0, "it drains already"  # type: ignore[attr-defined]
    await fleet.store.commit([Delete(drain_key("n1")), Delete(tenant_key("blue"))], timeout_s=5)
    await until(lambda: second.quotas() == {"red": 700, "blue": 2048})
    await until(lambda: "n1" not in second.hard.recorder.state.drains)
    third = await fleet.start("red=1KB")
    assert third.quotas() == {"red": 700}, "records win over settings"


async def test_what_was_missed_is_read_again(fleet: Fleet) -> None:
    """Its watch is too far behind, and what it missed has been deleted meanwhile."""
    master = await fleet.start()
    await master.ask(SetTenant("red", 700))
    await master.hard.cluster.close()
    revision = await fleet.store.commit([Delete(tenant_key("red"))], timeout_s=5)
    assert revision is not None
    for number in range(3):
        put = Put(tenant_key(f"t{number}"), encode(TenantRecord(5)))
        revision = await fleet.store.commit([put], timeout_s=5) or 0
    master.hard.recorder.watch = Behind(master.hard.recorder)  # type: ignore[method-assign]
    await fleet.store.compact(revision, timeout_s=5)
    master.hard.cluster.follow()
    await until(lambda: master.quotas() == {"t0": 5, "t1": 5, "t2": 5})
    await fleet.store.commit([Put(tenant_key("t0"), encode(TenantRecord(6)))], timeout_s=5)
    await until(lambda: master.quotas()["t0"] == 6)


class Behind:
    """Begins each first watch of a kind at a revision that the store has forgotten."""

    def __init__(self, recorder: Recorder) -> None:
        self._watch = recorder.watch
        self._kinds = set(CLUSTER_WIDE)

    def __call__(self, kind: str, after_revision: int) -> object:
        late = kind in self._kinds
        self._kinds.discard(kind)
        return self._watch(kind, 1 if late else after_revision)


async def test_older_news_do_not_undo_what_was_acknowledged(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await fleet.start()
    learned: list[int | None] = []
    monkeypatch.setattr(master.core.tenants, "recorded", lambda _, quota_bytes: learned.append(quota_bytes))
    await fleet.store.commit([Put(tenant_key("red"), encode(TenantRecord(4)))], timeout_s=5)
    await until(lambda: 4 in learned)
    await fleet.store.commit([Put(tenant_key("red"), encode(TenantRecord(5)))], timeout_s=5)
    await master.ask(SetTenant("red", 6))  # the news of 5 have not been heard yet
    await fleet.store.commit([Put(tenant_key("red"), encode(TenantRecord(7)))], timeout_s=5)
    await until(lambda: 7 in learned)
    assert 5 not in learned


async def test_a_shard_is_recovered_with_what_others_have_acknowledged(fleet: Fleet) -> None:
    """Even if no news of it have come: the pins of a keyspace that this master has not heard of."""
    master = await fleet.start()
    await master.hard.cluster.close()
    other = await fleet.start()
    await other.ask(RegisterKeyspace(SPEC))
    await other.ask(SetTenant("red", 700))
    await fleet.store.commit([Put(pin_key(2, KEYSPACE, HASH), encode(PinRecord(0)))], timeout_s=5)
    master.core.shards.own(2, 7)
    await master.hard.recover(2)
    assert set(master.core.shards.get(2).table(KEYSPACE).kept_pins) == {HASH}
    assert master.quotas() == {"red": 700}


async def test_what_could_not_be_recorded_does_not_hold(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await fleet.start("red=1KB")
    await master.ask(SetTenant("blue", 5))
    await fleet.store.commit([Put(drain_key("n1"), encode(DrainRecord(1)))], timeout_s=5)
    await until(lambda: "n1" in master.hard.recorder.state.drains)

    async def refuse(writes: list[Write], **_: object) -> int:
        raise StoreFailed(store="memory", reason="full")

    with monkeypatch.context() as patch:
        patch.setattr(fleet.store, "commit", refuse)
        for message in (SetTenant("red", 7), SetTenant("blue", 7), Drain("n1", False)):
            with pytest.raises(StoreFailed):
                await master.ask(message)
    assert master.quotas() == {"red": 1024, "blue": 5}
    assert master.core.handle(Drain("n1", True), 0.0, ADMIN).reply.count == 0  # type: ignore[attr-defined]


async def test_a_record_that_cannot_be_read_hides_no_other(fleet: Fleet) -> None:
    master = await fleet.start()
    puts = [Put(b"tenants/a", b"junk"), Put(tenant_key("red"), encode(TenantRecord(5)))]
    await fleet.store.commit(puts, timeout_s=5)
    await until(lambda: master.quotas() == {"red": 5})
