"""Long requests go in slices, and lookups between them. Nothing here is timed: what counts is who is answered first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import inf

import msgspec
import numpy as np
import pytest
from support.paper_cluster import PaperCluster, blocks_of, chain, chained_spec, flat_spec
from support.report_node import KEYSPACE, SPEC, ReportNode
from support.report_node import chain as reported_chain
from support.waiting import until

from moonpool.master import turns
from moonpool.master.ceiling import STUDIED_MAX
from moonpool.master.outcome import Origin
from moonpool.master.server import MasterServer
from moonpool.master.sweeps import COPIES_A_CALL
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import InvalidParams, Overloaded, Unavailable
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    ITEMS_MAX,
    Hello,
    KeyspaceRegistered,
    Locate,
    Message,
    Presence,
    Present,
    Probed,
    PutAnswer,
    PutItem,
    PutStart,
    PutStarted,
    RegisterKeyspace,
    Renew,
    Renewed,
    decode_from_master,
    decode_master_request,
    encode,
)
from moonpool.schemas.packed import join_hashes, split_hashes
from moonpool.schemas.routing import merged
from moonpool.schemas.runs import STRIDE, split_runs
from moonpool.store_client.prefix import PrefixSearch
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection

LOOKUPS = 10
HASHES = reported_chain(10)


@pytest.fixture
async def server() -> AsyncIterator[MasterServer]:
    server = MasterServer(MasterSettings(port=0))
    await server.start()
    yield server
    await server.close()


async def connect(server: MasterServer) -> AsyncRpcConnection:
    hello = Hello(PROTOCOL_VERSION, role="client", client="test")
    return await AsyncRpcConnection.connect(server._handler.address, hello, decode_from_master, timeout_s=5)


def random_hashes(count: int, hash_bytes: int, seed: int) -> list[bytes]:
    packed = np.random.default_rng(seed).bytes(count * hash_bytes)
    return split_hashes(packed, hash_bytes)


def greatest_put(seed: int) -> PutStart:
    """As many blocks as one request may name."""
    size = SPEC.hash_bytes
    items = []
    for number in range(turns.LONG_MAX * 2):
        hashes = random_hashes(STRIDE, size, seed * 1000 + number)
        items.append(PutItem(KEYSPACE, 0, STRIDE, hashes[-1], join_hashes(hashes), 4096))
    return PutStart(items)


async def test_lookups_are_answered_while_the_greatest_requests_are(server: MasterServer) -> None:
    node, looking = ReportNode(), await connect(server)
    await node.join(server._handler.address, HASHES)
    known = await looking.call(RegisterKeyspace(flat_spec()), 5)
    assert isinstance(known, KeyspaceRegistered)
    flat = join_hashes(random_hashes(65536, 16, 7))
    others = [await connect(server) for _ in range(3)]
    long: list[Message] = [greatest_put(1), greatest_put(2), Presence(known.keyspace, flat)]
    asked = [
        asyncio.ensure_future(other.call(message, 60)) for other, message in zip(others, long, strict=True)
    ]
    while not server._handler._turns.slices:
        await asyncio.sleep(0)
    probe = PrefixSearch(SPEC, HASHES).probe(-1)
    for _ in range(LOOKUPS):
        assert await looking.call(probe, 60) == Probed([10], 0)
    assert not any(one.done() for one in asked), "each waits for the lookups that came after it"
    first, second, third = await asyncio.gather(*asked)
    assert isinstance(first, PutStarted) and isinstance(second, PutStarted)
    for started in (first, second):
        assert [len(answers) for answers in started.answers] == [STRIDE] * 128
        assert set(started.answers[0]) == {PutAnswer.GO}
    assert third == Present(bytes(65536))
    assert server._handler._turns.slices >= 2 * 128 * STRIDE / turns.PUT_SLICE + 65536 / turns.LOOKUP_SLICE
    for connection in (looking, *others):
        await connection.close()
    await node.close()


async def test_too_many_long_requests_are_refused(
    server: MasterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "LONG_MAX", 1)
    client = await connect(server)
    known = await client.call(RegisterKeyspace(flat_spec()), 5)
    assert isinstance(known, KeyspaceRegistered)
    long = Renew(known.keyspace, join_hashes(random_hashes(20_000, 16, 7)))
    first = asyncio.ensure_future(client.call(long, 60))
    while not server._handler._turns.slices:
        await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await client.call(long, 60)
    assert await first == Renewed(bytes(20_000))
    assert await client.call(long, 60) == Renewed(bytes(20_000)), "there is room again"
    await client.close()


async def test_a_master_that_is_deposed_half_way_says_no_more(server: MasterServer) -> None:
    client = await connect(server)
    known = await client.call(RegisterKeyspace(flat_spec()), 5)
    assert isinstance(known, KeyspaceRegistered)
    long = Renew(known.keyspace, join_hashes(random_hashes(60_000, 16, 7)))
    asked = asyncio.ensure_future(client.call(long, 60))
    while not server._handler._turns.slices:
        await asyncio.sleep(0)
    server._handler.serving = lambda: False
    with pytest.raises(Unavailable):
        await asked
    assert server._handler._turns.slices < 60_000 / turns.SLICE_BLOCKS
    await client.close()


def sliced(cluster: PaperCluster, message: Message) -> Message:
    parts = cluster.core.shards.slices(message, 100)
    assert len(parts) > 1
    return merged(message, parts, [cluster.ask(part.message) for part in parts])


def test_slices_add_up_to_the_whole() -> None:
    """Of two equal clusters one is asked in slices."""
    prompt = chain(1200)
    replies = []
    for ask in (PaperCluster.ask, sliced):
        cluster = PaperCluster(chained_spec())
        cluster.join("a")
        cluster.commit("a", blocks_of(prompt[:700]))
        items = [
            PutItem(
                cluster.keyspace,
                0,
                first,
                prompt[first - 1] if first else b"",
                join_hashes(prompt[first : first + count]),
                4096,
            )
            for first, count in split_runs(0, len(prompt))
        ]
        replies.append(ask(cluster, PutStart(items)))
    assert replies[0] == replies[1]
    assert isinstance(replies[0], PutStarted)
    assert b"".join(replies[0].answers) == bytes([PutAnswer.EXISTS] * 700 + [PutAnswer.GO] * 500)
    flat = PaperCluster(flat_spec())
    for name, hashes in (("a", prompt[:150]), ("b", prompt[150:300])):
        flat.join(name)
        flat.commit(name, blocks_of(hashes))
    mixed = join_hashes(prompt[100:400])
    for message in (Presence(flat.keyspace, mixed), Locate(flat.keyspace, 0, hashes=mixed)):
        assert sliced(flat, message) == flat.ask(message)


def test_more_than_the_greatest_is_refused_before_anything_is_done() -> None:
    cluster = PaperCluster(flat_spec())
    cluster.join("a")
    with pytest.raises(InvalidParams):
        cluster.core.shards.slices(Presence(cluster.keyspace, bytes(16 * 70_000)), turns.SLICE_BLOCKS)
    with pytest.raises(InvalidParams):
        cluster.ask(PutStart([PutItem(cluster.keyspace, 0, 0, b"", bytes(16 * (STRIDE + 1)), 4096)]))


def test_a_list_of_millions_is_refused_before_it_is_read() -> None:
    tiny = encode(PutStart([PutItem(b"", 0, 0, b"", b"", 0)]))
    head, item = tiny[: tiny.index(b"\x91\x99")], tiny[tiny.index(b"\x91\x99") + 1 : -3]
    many = head + b"\xdd" + (ITEMS_MAX + 1).to_bytes(4, "big") + item * (ITEMS_MAX + 1) + tiny[-3:]
    with pytest.raises(msgspec.ValidationError, match=f"length <= {ITEMS_MAX}"):
        decode_master_request(many)
    assert isinstance(decode_master_request(tiny), PutStart)


async def test_lookups_are_learnt_from_later_and_bit_by_bit(server: MasterServer) -> None:
    core = server._core
    index = next(iter(core.shards.demands()))[1].ceiling
    origin = Origin("", SPEC.tenant, sees_all=True)
    core.handle(RegisterKeyspace(SPEC), 0.0, origin)
    asked = 10 * STUDIED_MAX
    for number in range(asked):
        core.handle(PrefixSearch(SPEC, reported_chain(number + 1)).probe(0), 0.0, origin)
    core.tick(0.0)
    assert index.waiting == asked, "no tick holds lookups up with all of it"
    core.shards.work(0.0)
    assert index.waiting == asked - STUDIED_MAX
    await until(lambda: not index.waiting)


def test_what_a_lost_node_leaves_goes_bit_by_bit() -> None:
    cluster = PaperCluster(chained_spec())
    cluster.join("a")
    blocks = blocks_of(chain(3 * COPIES_A_CALL))
    for first in range(0, len(blocks), 64):
        cluster.commit("a", blocks[first : first + 64])
    cluster.disconnect("a")
    cluster.now_s += 3600
    cluster.core.tick(cluster.now_s)

    def swept() -> int:
        return int(cluster.core.status(cluster.now_s)["swept_lost_copies"])

    gone = [swept()]
    while cluster.core.shards.work(cluster.now_s) < inf:
        gone.append(swept())
    assert gone[0] == 0, "no tick holds lookups up with all of them"
    assert gone[1] == COPIES_A_CALL and gone[-1] == len(blocks)
