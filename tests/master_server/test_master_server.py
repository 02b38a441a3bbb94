"""A real master behind real connections: pushes, confirmations, take-overs, disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from support.report_node import KEYSPACE, ReportNode, chain
from support.waiting import at_most, until

from moonpool.master import removals
from moonpool.master.server import MasterServer
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import Forbidden, InvalidParams, KeyspaceUnknown
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    Check,
    ClusterMap,
    Drop,
    GetClusterMap,
    GetStatus,
    Hello,
    Locate,
    Located,
    Match,
    Matched,
    Message,
    NodeState,
    Remove,
    Removed,
    ReportBad,
    RunSlice,
    StatusReport,
    decode_from_master,
)
from moonpool.schemas.packed import join_hashes
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection

HASHES = chain(10)
T_S = 60.0
WAIT_MS = 20_000
MATCH = Match(KEYSPACE, [(0, join_hashes(HASHES))])


@pytest.fixture
async def master() -> AsyncIterator[str]:
    """Its address. It takes nodes that are silent for slow ones."""
    server = MasterServer(MasterSettings(port=0, heartbeat_s=0.2, suspect_after_s=60, lost_after_s=120))
    yield await server.start()
    await server.close()


@pytest.fixture
async def client(master: str) -> AsyncIterator[AsyncRpcConnection]:
    hello = Hello(PROTOCOL_VERSION, role="client", client="test")
    connection = await AsyncRpcConnection.connect(master, hello, decode_from_master, timeout_s=T_S)
    yield connection
    await connection.close()


async def ready(client: AsyncRpcConnection) -> int:
    reply = await client.call(MATCH, T_S)
    assert isinstance(reply, Matched)
    return reply.ready[0]


async def state(client: AsyncRpcConnection) -> NodeState | None:
    reply = await client.call(GetClusterMap(), T_S)
    assert isinstance(reply, ClusterMap)
    return reply.nodes[0].state if reply.nodes else None


async def until_it_is(states: set[NodeState | None], client: AsyncRpcConnection) -> None:
    async with asyncio.timeout(T_S):
        while await state(client) not in states:
            await asyncio.sleep(0.05)


async def removed(client: AsyncRpcConnection, wait_ms: int) -> tuple[Removed, float]:
    start_s = time.monotonic()
    message = Remove(KEYSPACE, join_hashes(HASHES[5:6]), force=True, wait_ms=wait_ms)
    reply = await client.call(message, T_S)
    assert isinstance(reply, Removed)
    return reply, time.monotonic() - start_s


async def test_what_a_node_reports_is_matched_and_located(master: str, client: AsyncRpcConnection) -> None:
    node = ReportNode()
    await node.join(master, HASHES)
    assert await ready(client) == 10
    reply = await client.call(Locate(KEYSPACE, 0, [RunSlice(HASHES[-1], 0, 10)]), T_S)
    assert isinstance(reply, Located)
    assert reply.segments == [node.segment]
    await node.close()


async def test_an_unknown_keyspace_is_told_as_such(client: AsyncRpcConnection) -> None:
    with pytest.raises(KeyspaceUnknown):
        await client.call(MATCH, T_S)


async def test_the_map_names_the_master_and_the_status_counts_connections(
    master: str, client: AsyncRpcConnection
) -> None:
    node = ReportNode()
    await node.join(master, [])
    cluster = await client.call(GetClusterMap(), T_S)
    assert isinstance(cluster, ClusterMap)
    assert cluster.masters == [master]
    assert client.welcome is not None
    assert cluster.epoch == client.welcome.epoch == node.epoch
    status = await client.call(GetStatus(), T_S)
    assert isinstance(status, StatusReport)
    assert (status.facts["connections"], status.facts["nodes_connected"]) == (2, 1)
    await node.close()


@pytest.mark.parametrize("role", ["client", "data", ""])
async def test_only_a_node_announces(master: str, client: AsyncRpcConnection, role: str) -> None:
    """Whoever announces a segment takes its pushes, and closes the connection of the node that holds it."""
    node, stranger = ReportNode(), ReportNode(role=role)
    await node.join(master, HASHES)
    await stranger.connect(master)
    with pytest.raises(Forbidden, match=f"a node may announce a segment, not a '{role}'"):
        await stranger.announce()
    await node.heartbeat()
    assert await state(client) is NodeState.LIVE
    await stranger.close()
    await node.close()


async def test_a_removal_waits_for_its_node(master: str, client: AsyncRpcConnection) -> None:
    node = ReportNode(confirms=False)
    await node.join(master, HASHES)
    removal = asyncio.create_task(removed(client, wait_ms=WAIT_MS))
    await until(lambda: node.pushes)
    assert await ready(client) == 5
    assert not removal.done()
    drop = node.pushes[0]
    assert isinstance(drop, Drop)
    await node.confirm(drop)
    reply, took_s = await removal
    assert reply == Removed(count=5, skipped=0, pending=[])
    assert took_s < WAIT_MS / 2000
    await node.close()


async def test_a_large_removal_is_pending_until_its_last_slice(
    master: str, client: AsyncRpcConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "COPIES_MAX", 2)
    node = ReportNode()
    await node.join(master, HASHES)
    reply, _ = await removed(client, wait_ms=WAIT_MS)
    assert reply == Removed(5, 0, ["n1"])
    assert await ready(client) == 5
    async with asyncio.timeout(T_S):
        while (await removed(client, wait_ms=WAIT_MS))[0].pending:
            await asyncio.sleep(0.05)
            await node.heartbeat()
    dropped = [
        len(part.hashes) // 16 for push in node.pushes if isinstance(push, Drop) for part in push.drops
    ]
    assert (sum(dropped), max(dropped)) == (5, 2)
    await node.close()


async def test_a_node_that_does_not_confirm_is_named_after_the_deadline(
    master: str, client: AsyncRpcConnection
) -> None:
    node = ReportNode("slow", confirms=False)
    await node.join(master, HASHES)
    reply, took_s = await removed(client, wait_ms=200)
    assert reply == Removed(count=5, skipped=0, pending=["slow"])
    assert 0.19 < took_s < at_most(0.2)
    await node.close()


async def test_a_node_that_is_away_is_named_without_a_wait_and_told_when_it_is_back(
    master: str, client: AsyncRpcConnection
) -> None:
    node = ReportNode("traveller")
    await node.join(master, HASHES)
    await node.close()
    await until_it_is({NodeState.SUSPECT}, client)
    reply, took_s = await removed(client, wait_ms=WAIT_MS)
    assert reply.pending == ["traveller"]
    assert took_s < WAIT_MS / 2000
    await node.join(master, HASHES)
    await until(lambda: node.pushes)
    drop = node.pushes[0]
    assert isinstance(drop, Drop)
    assert HASHES[5] in drop.hashes
    await node.close()


async def test_many_removals_at_once_each_get_their_answer(master: str, client: AsyncRpcConnection) -> None:
    node = ReportNode()
    await node.join(master, HASHES)
    calls = [client.call(Remove(KEYSPACE, one, force=True, wait_ms=WAIT_MS), T_S) for one in reversed(HASHES)]
    assert await asyncio.gather(*calls) == [Removed(1, 0, [])] * 10
    await node.close()


async def test_a_bad_report_reaches_the_node(master: str, client: AsyncRpcConnection) -> None:
    node = ReportNode()
    await node.join(master, HASHES)
    await client.call(ReportBad(KEYSPACE, 0, HASHES[3], node.segment, 3, 4), T_S)
    assert await ready(client) == 3
    await until(lambda: node.pushes)
    check = node.pushes[0]
    assert isinstance(check, Check)
    assert (check.block_hash, check.slot, check.generation) == (HASHES[3], 3, 4)
    await node.close()


async def test_a_segment_that_announces_again_takes_its_pushes_along(
    master: str, client: AsyncRpcConnection
) -> None:
    old, new = ReportNode(confirms=False), ReportNode()
    await old.join(master, HASHES)
    await new.join(master, HASHES)
    await asyncio.wait_for(old.connection.closed, T_S)  # told by the end of its connection
    assert await ready(client) == 10  # and that end was no disconnect of the segment
    reply, _ = await removed(client, wait_ms=WAIT_MS)
    assert reply.pending == []
    assert len(new.pushes) == 1
    assert not old.pushes
    await new.close()
    await old.close()


async def test_reports_are_taken_from_the_announced_connection_only(master: str) -> None:
    node, other = ReportNode("a"), ReportNode("b")
    await node.join(master, HASHES)
    await other.connect(master)
    with pytest.raises(InvalidParams, match="announced on this connection"):
        other.epoch = node.epoch
        await other.heartbeat()
    await other.announce()
    other.segment = node.segment
    with pytest.raises(InvalidParams, match="announced on this connection"):
        await other.heartbeat()
    with pytest.raises(InvalidParams, match="one segment a connection"):
        await other.announce()
    await node.close()
    await other.close()


async def test_a_disconnected_node_is_not_matched_until_it_is_back(
    master: str, client: AsyncRpcConnection
) -> None:
    node = ReportNode()
    await node.join(master, HASHES)
    await node.close()
    await until_it_is({NodeState.SUSPECT}, client)
    assert await ready(client) == 0
    await node.join(master, HASHES)
    await until_it_is({NodeState.LIVE}, client)
    assert await ready(client) == 10
    await node.close()


async def test_a_silent_node_becomes_suspect_and_then_lost() -> None:
    """Its heartbeats keep it for longer than it may be silent. Its clock counts half a second of a pause at most."""
    server = MasterServer(MasterSettings(port=0, heartbeat_s=0.2, suspect_after_s=1.2, lost_after_s=2.4))
    master = await server.start()
    hello = Hello(PROTOCOL_VERSION, role="client", client="test")
    client = await AsyncRpcConnection.connect(master, hello, decode_from_master, timeout_s=T_S)
    node = ReportNode()
    await node.join(master, HASHES)
    for _ in range(8):
        await node.heartbeat()
        await asyncio.sleep(0.2)
    assert await ready(client) == 10
    await until_it_is({NodeState.SUSPECT}, client)
    assert await ready(client) == 0
    await until_it_is({NodeState.LOST, None}, client)
    assert await ready(client) == 0
    await node.close()
    await client.close()
    await server.close()


@pytest.mark.parametrize("wait_ms", [-5, 0])
async def test_a_removal_that_does_not_wait_says_who_is_pending(
    master: str, client: AsyncRpcConnection, wait_ms: int
) -> None:
    node = ReportNode(confirms=False)
    await node.join(master, HASHES)
    reply, took_s = await removed(client, wait_ms)
    assert reply.pending == ["n1"]
    assert took_s < at_most(0.05)
    await node.close()


async def test_many_clients_requests_at_once(master: str, client: AsyncRpcConnection) -> None:
    node = ReportNode()
    await node.join(master, HASHES)
    messages: list[Message] = [GetClusterMap(), GetStatus(), MATCH] * 50
    replies = await asyncio.gather(*(client.call(message, T_S) for message in messages))
    assert [type(reply) for reply in replies] == [ClusterMap, StatusReport, Matched] * 50
    await node.close()
