"""What was acknowledged holds after the master is gone: pins, keyspaces, removals on nodes that were away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from support.report_node import KEYSPACE, SPEC, ReportNode, chain, entries_of

from moonpool.master import removals
from moonpool.master.server import MasterServer
from moonpool.master.store.base import Write
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown, StoreFailed
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    DescribeKeyspace,
    Done,
    Drain,
    Drop,
    GetClusterMap,
    GetStatus,
    Hello,
    InventoryEnd,
    KeyspaceFacts,
    Keyspaces,
    ListKeyspaces,
    ListTenants,
    Match,
    Message,
    Need,
    Pin,
    RegisterKeyspace,
    Remove,
    SetReplicas,
    SetTenant,
    Unpin,
    decode_from_master,
)
from moonpool.schemas.packed import join_hashes, split_hashes
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection

HASHES = chain(10)
T_S = 60.0


class Life:
    """One master over a file, from its start to its end, and a client of it."""

    def __init__(self, path: Path, log_every_s: float = 5.0) -> None:
        self._settings = MasterSettings(
            port=0,
            heartbeat_s=0.2,
            suspect_after_s=60,
            lost_after_s=120,
            store=f"file:{path}",
            log_every_s=log_every_s,
        )

    async def __aenter__(self) -> Self:
        self.server = MasterServer(self._settings)
        self.address = await self.server.start()
        hello = Hello(PROTOCOL_VERSION, role="client", client="test")
        self.client = await AsyncRpcConnection.connect(self.address, hello, decode_from_master, timeout_s=T_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.server.close()

    async def call(self, message: Message) -> Message:
        return await self.client.call(message, T_S)

    async def count(self, message: Pin | Unpin) -> int:
        reply = await self.call(message)
        assert isinstance(reply, Done)
        return reply.count

    async def facts(self) -> dict[str, object]:
        reply = await self.call(GetStatus())
        return dict(reply.facts)  # type: ignore[attr-defined]

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        async with asyncio.timeout(T_S):
            while not holds(await self.facts()):
                await asyncio.sleep(0.02)

    async def ready(self, hashes: Sequence[bytes] = HASHES) -> int:
        reply = await self.call(Match(KEYSPACE, [(0, join_hashes(hashes))]))
        return int(reply.ready[0])  # type: ignore[attr-defined]


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path / "hard-state"


async def test_keyspaces_and_drains_survive(path: Path) -> None:
    async with Life(path) as life:
        for _ in range(2):
            await life.call(RegisterKeyspace(SPEC))
        nodes = [ReportNode("n1"), ReportNode("n2")]
        for node in nodes:
            await node.join(life.address, [])
        await life.call(Drain("n1", True))
        await life.call(Drain("n2", True))
        await life.call(Drain("n2", False))
        for node in nodes:
            await node.close()
    async with Life(path) as life:
        reply = await life.call(ListKeyspaces("default"))
        assert isinstance(reply, Keyspaces)
        assert reply.specs == [SPEC]
        for node in nodes:
            await node.join(life.address, [])
        cluster = await life.call(GetClusterMap())
        assert {one.info.node: one.draining for one in cluster.nodes} == {"n1": True, "n2": False}  # type: ignore[attr-defined]
        for node in nodes:
            await node.close()


async def test_the_number_of_copies_survives(path: Path) -> None:
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        assert await life.call(SetReplicas(SPEC.digest(), 3)) == Done(1)
        assert await life.call(SetReplicas(SPEC.digest(), 3)) == Done(0)
        with pytest.raises(InvalidParams, match="1 to 4"):
            await life.call(SetReplicas(SPEC.digest(), 5))
        with pytest.raises(KeyspaceUnknown):
            await life.call(SetReplicas(bytes(16), 2))
    async with Life(path) as life:
        facts = await life.call(DescribeKeyspace(SPEC.digest()))
        assert isinstance(facts, KeyspaceFacts) and facts.replicas == 3
        await life.call(SetReplicas(SPEC.digest(), 1))
    async with Life(path) as life:
        facts = await life.call(DescribeKeyspace(SPEC.digest()))
        assert isinstance(facts, KeyspaceFacts) and facts.replicas == 1


async def test_quotas_survive(path: Path) -> None:
    async with Life(path) as life:
        for tenant, quota_bytes in (("red", 500), ("blue", 600), ("blue", 0), ("red", 700)):
            await life.call(SetTenant(tenant, quota_bytes))
    async with Life(path) as life:
        reply = await life.call(ListTenants())
        assert [(one.tenant, one.quota_bytes) for one in reply.tenants] == [("red", 700)]  # type: ignore[attr-defined]


async def evicted(node: ReportNode) -> set[bytes]:
    """Asks for all bytes that the master would give up."""
    found: set[bytes] = set()
    reply = await node.connection.call(Need(node.segment, node.epoch, 1 << 30), T_S)
    for some in reply.drops:  # type: ignore[attr-defined]
        found |= set(split_hashes(some.hashes, 16))
    return found


async def test_a_pin_survives_and_holds_when_its_row_is_back(path: Path) -> None:
    node = ReportNode()
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        assert await life.count(Pin(KEYSPACE, join_hashes(HASHES[3:4]))) == 1
        assert await life.count(Pin(KEYSPACE, join_hashes(HASHES[5:7]))) == 2
        assert await life.count(Pin(KEYSPACE, join_hashes(HASHES[8:9]), ttl_ms=1)) == 1
        assert await life.count(Unpin(KEYSPACE, join_hashes(HASHES[6:7]))) == 1
        await node.close()
    async with Life(path) as life:
        assert (await life.facts())["recorded_pins"] in (2, 3)  # one may be over by now
        await node.join(life.address, HASHES)
        assert (await life.facts())["pins"] >= 2  # type: ignore[operator]
        await life.until(lambda facts: facts["pins"] == facts["recorded_pins"] == 2)  # a tick ends the third
        assert await evicted(node) == set(HASHES[6:])
        assert await life.count(Unpin(KEYSPACE, join_hashes(HASHES))) == 2
        assert await evicted(node) == set(HASHES[:6])
        await node.close()
    async with Life(path) as life:
        assert (await life.facts())["recorded_pins"] == 0


async def test_pins_of_a_keyspace_that_only_nodes_have_told_of(path: Path) -> None:
    """No client has registered it here, or the store has missed that: the pin's own record needs it."""
    node = ReportNode()
    async with Life(path) as life:
        await node.join(life.address, HASHES)
        assert await life.count(Pin(KEYSPACE, join_hashes(HASHES[3:5]))) == 2
        assert await life.count(Unpin(KEYSPACE, join_hashes(HASHES[4:5]))) == 1
        assert (await life.facts())["recorded_pins"] == 1
        await node.close()
    async with Life(path) as life:
        await node.join(life.address, HASHES)
        assert await evicted(node) == set(HASHES[4:])
        await node.close()


async def test_a_removal_of_pinned_rows_ends_their_pins(path: Path) -> None:
    node = ReportNode()
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        assert await life.count(Pin(KEYSPACE, join_hashes(HASHES[2:8]))) == 6
        await life.call(Remove(KEYSPACE, join_hashes(HASHES[5:6]), force=True))
        assert (await life.facts())["recorded_pins"] == 3
        await node.report([entries_of(HASHES)])
        assert (await life.facts())["pins"] == 3
        await node.close()


async def test_a_removal_in_slices_ends_its_pins_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "COPIES_MAX", 4)
    node = ReportNode()
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        assert await life.count(Pin(KEYSPACE, join_hashes([HASHES[0], HASHES[7]]))) == 2
        await life.call(Remove(KEYSPACE, join_hashes(HASHES[1:2]), force=True))
        assert (await life.facts())["recorded_pins"] == 1
        async with asyncio.timeout(T_S):
            while (await life.facts())["doomed_blocks"]:
                await asyncio.sleep(0.02)
        await node.report([entries_of(HASHES)])
        assert (await life.facts())["pins"] == 1, "it was put again, and not pinned again"
        await node.close()


async def test_a_removal_outlives_master_and_absence(path: Path) -> None:
    """The node is away when a row is removed, and comes back to another master with the row in its inventory."""
    node, other = ReportNode("n1"), ReportNode("n2")
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        await other.join(life.address, [])
        await node.close()
        reply = await life.call(Remove(KEYSPACE, join_hashes(HASHES[5:6]), force=True, wait_ms=50))
        assert (reply.count, reply.pending) == (5, [])  # type: ignore[attr-defined]
        assert (await life.facts())["recorded_removals"] == 1
        await other.close()
    async with Life(path) as life:
        assert (await life.facts())["recorded_removals"] == 1
        node = ReportNode("n1", confirms=False)
        await node.join(life.address, HASHES)
        assert await life.ready() == 5  # though the node has not yet done what it is told
        told = [push for push in node.pushes if isinstance(push, Drop)]
        assert [drop.hashes for drop in told if drop.hashes] == [HASHES[5]]
        assert [some.hashes for drop in told if not drop.hashes for some in drop.drops] == [
            join_hashes(HASHES[5:])
        ]
        for drop in told:
            await node.confirm(drop)
        async with asyncio.timeout(T_S):
            while (await life.facts())["recorded_removals"]:
                await asyncio.sleep(0.02)
        await node.report([entries_of(HASHES)])  # put again: nothing is held against it any more
        assert await life.ready() == 10
        await node.close()
    async with Life(path) as life:
        assert (await life.facts())["recorded_removals"] == 0


def predicates(node: ReportNode) -> list[Drop]:
    return [push for push in node.pushes if isinstance(push, Drop) and push.hashes]


async def test_a_confirmation_that_comes_while_its_removal_is_recorded_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the record stays, and the next master has the node drop what was put since."""
    node = ReportNode(confirms=False)
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        recording, may_end = asyncio.Event(), asyncio.Event()
        assert life.server._hard is not None
        recorder = life.server._hard.recorder
        record = recorder.record

        async def slowly(writes: Sequence[Write], shard: int | None = None) -> None:
            recording.set()
            await may_end.wait()
            await record(writes, shard)

        monkeypatch.setattr(recorder, "record", slowly)
        removal = asyncio.create_task(life.call(Remove(KEYSPACE, join_hashes(HASHES[5:6]), wait_ms=50)))
        await asyncio.wait_for(recording.wait(), T_S)
        await node.confirm(predicates(node)[0])
        may_end.set()
        assert (await removal).pending == []  # type: ignore[attr-defined]
        async with asyncio.timeout(T_S):
            while (await life.facts())["recorded_removals"]:
                await asyncio.sleep(0.02)
        await node.close()
    async with Life(path) as life:
        node = ReportNode()
        await node.join(life.address, HASHES)
        assert await life.ready() == 10
        assert predicates(node) == []
        await node.close()


async def test_a_recorded_removal_is_not_told_again_once_it_is_confirmed(path: Path) -> None:
    node = ReportNode(confirms=False)
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        for number in (5, 7):
            await life.call(Remove(KEYSPACE, join_hashes(HASHES[number : number + 1]), wait_ms=20))
        first, second = predicates(node)
        await node.confirm(first)
        await node.confirm(second)
        async with asyncio.timeout(T_S):
            while (await life.facts())["recorded_removals"]:
                await asyncio.sleep(0.02)
        await node.heartbeat()
        assert predicates(node) == [first, second]
        await node.close()


async def test_the_next_master_hears_that_a_removal_was_obeyed(path: Path) -> None:
    """Its confirmation was lost with the master, and the blocks were put again."""
    node = ReportNode(confirms=False)
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        reply = await life.call(Remove(KEYSPACE, join_hashes(HASHES[5:6]), wait_ms=20))
        assert reply.pending == []  # type: ignore[attr-defined]
        (asked,) = predicates(node)
        await node.close()
    async with Life(path) as life:
        node = ReportNode(confirms=False)
        await node.connect(life.address)
        await node.announce()
        await node.start_stream(HASHES, obeyed=[asked.order])
        assert await life.ready() == 10
        assert node.pushes == []
        async with asyncio.timeout(T_S):
            while (await life.facts())["recorded_removals"]:
                await asyncio.sleep(0.02)
        await node.close()


async def test_without_its_store_a_master_refuses_what_needs_it_and_serves_on(path: Path) -> None:
    node = ReportNode()
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        store = life.server._store._store  # type: ignore[attr-defined]
        log_file, broken = store._log, os.open("/dev/full", os.O_RDWR)  # type: ignore[attr-defined]
        kept, log_file._file, log_file.path = (log_file._file, log_file.path), broken, Path("/proc/nothing")
        log_file._new_path = Path("/proc/nothing.new")
        for _ in range(2):
            with pytest.raises(StoreFailed, match="nothing was recorded"):
                await life.call(Pin(KEYSPACE, join_hashes(HASHES[3:4])))
        assert (await life.facts())["pins"] == 0
        assert await life.ready() == 10
        remove = Remove(KEYSPACE, join_hashes(HASHES[9:]), force=True)
        with pytest.raises(StoreFailed, match="nothing was recorded"):  # the entry log could bring it back
            await life.call(remove)
        assert (await life.facts())["rows"] == 9, "all the same it is gone"
        await node.report([InventoryEnd()])
        log_file._file, log_file.path = kept
        log_file._new_path = path.with_name("hard-state.new")
        os.close(broken)
        assert await life.count(Pin(KEYSPACE, join_hashes(HASHES[3:4]))) == 1
        reply = await life.call(remove)
        assert (reply.count, reply.pending) == (0, [])  # type: ignore[attr-defined]
        await node.close()
