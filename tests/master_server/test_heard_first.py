"""What a node has sent through the near door is taken in before anybody is answered, while it is alone in its pool."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from typing import cast

import pytest
from support.report_node import KEYSPACE, ReportNode, chain, entries_of
from support.waiting import until

from moonpool.master import heard_first as heard_first_module
from moonpool.master.heard_first import HeardFirst
from moonpool.master.rest.gateway import Gateway
from moonpool.master.server import MasterServer
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    Announced,
    Heartbeat,
    Hello,
    Locate,
    Located,
    Match,
    Matched,
    Message,
    PutAnswer,
    PutItem,
    PutStart,
    PutStarted,
    Remove,
    Removed,
    Report,
    RunSlice,
    decode_from_master,
)
from moonpool.schemas.packed import join_hashes
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection
from moonpool.store_client.rpc.peer import Peer

HASHES = chain(10)
PACKED = join_hashes(HASHES)
MATCH = Match(KEYSPACE, [(0, PACKED)])
T_S = 60.0


class Pool:
    """A master in this event loop, with a client, whose requests are handed to its handler at once."""

    def __init__(self, server: MasterServer, address: str) -> None:
        self.address = address
        self._server = server
        self.first: HeardFirst = server._handler.first

        self.parts = server.parts()

    async def begin(self) -> None:
        hello = Hello(PROTOCOL_VERSION, role="client", client="asks")
        self.client = await AsyncRpcConnection.connect(self.address, hello, decode_from_master, timeout_s=T_S)

    @property
    def peer(self) -> Peer:
        """The client's."""
        return next(peer for peer in self._server._handler._clients if peer.hello.client == "asks")

    def tell_nodes(self) -> None:
        """As when a shard has changed hands."""
        self._server._handler.tell_nodes()

    def ask(self, message: Message) -> Message | Awaitable[Message]:
        """Nothing is read from any socket meanwhile, but by the handler."""
        return self._server._handler.handle(message, self.peer)


@pytest.fixture(params=[True, False], ids=["near", "tcp"])
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[Pool]:
    settings = MasterSettings(
        port=0, heartbeat_s=0.2, suspect_after_s=60, lost_after_s=120, near_door=request.param
    )
    server = MasterServer(settings)
    pool = Pool(server, await server.start())
    await pool.begin()
    yield pool
    await pool.client.close()
    await server.close()


@pytest.fixture
async def node(pool: Pool) -> AsyncIterator[ReportNode]:
    node = ReportNode()
    await node.join(pool.address, [])
    yield node
    await node.close()


def told(node: ReportNode) -> None:
    """Reports some blocks, one by one, and waits for nothing."""
    for count in range(1, len(HASHES) + 1):
        report = Report(node.segment, 1, next(node._sequence), [entries_of(HASHES[:count])])
        node.connection.ask(report, lambda reply: None)


QUESTIONS = {
    "match": (MATCH, Matched([10])),
    "remove": (Remove(KEYSPACE, PACKED, force=True), Removed(10, 0, [])),
    "put": (
        PutStart([PutItem(KEYSPACE, 0, 0, b"", PACKED, 4096)]),
        PutStarted([bytes([PutAnswer.EXISTS]) * 10], [], []),
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
async def test_what_was_sent_before_is_known(pool: Pool, node: ReportNode, question: str) -> None:
    message, expected = QUESTIONS[question]
    told(node)
    answer = pool.ask(message)
    if not isinstance(answer, Message):
        answer = await asyncio.wait_for(answer, T_S)  # a removal, which the node confirms
    assert type(answer) is type(expected)
    fields = ("ready", "count", "answers")
    same = all(getattr(answer, name, None) == getattr(expected, name, None) for name in fields)
    assert same == pool.peer.near, "over tcp it may be under way"


async def test_and_a_place_is_named(pool: Pool, node: ReportNode) -> None:
    told(node)
    answer = pool.ask(Locate(KEYSPACE, 0, [RunSlice(HASHES[-1], 0, 10)]))
    assert isinstance(answer, Located)
    assert any(answer.generations) == pool.peer.near


async def beat(node: ReportNode, believes: bool) -> bool:
    """A heartbeat of a node that takes it so; what it is told."""
    message = Heartbeat(node.segment, node.epoch, 1 << 30, heard_first=believes)
    reply = await node.connection.call(message, T_S)
    assert isinstance(reply, Announced)
    return reply.heard_first


def noted(node: ReportNode) -> list[bool]:
    """What is pushed to it, from now on."""
    pushed: list[bool] = []

    def note(message: Message) -> None:
        if isinstance(message, Announced):
            pushed.append(message.heard_first)

    node.connection._on_push = note
    return pushed


async def test_a_second_node_waits_until_the_first_one_knows(pool: Pool, node: ReportNode) -> None:
    near = pool.peer.near
    assert await beat(node, believes=False) is near
    assert await beat(node, believes=near) is near
    pushed = noted(node)
    pool.tell_nodes()
    await until(lambda: pushed == [near])
    other = ReportNode("n2")
    try:
        await other.connect(pool.address)
        joining = asyncio.ensure_future(other.announce())
        if near:
            await until(lambda: pushed == [True, False])
            pool.tell_nodes()
            await until(lambda: pushed == [True, False, False])
            assert not await beat(node, believes=True), "sent before it was read"
            assert len(pool.first.peers) == 1 and not joining.done()
            assert not await beat(node, believes=False)
        assert not (await joining).heard_first
        assert not pool.first.peers
        assert not await beat(node, believes=False) and not await beat(other, believes=False)
    finally:
        await other.close()
    assert not await beat(node, believes=False), "who has gone may come back with what it holds"


async def test_one_that_stands_still_is_cut_off_and_heard(
    pool: Pool, node: ReportNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heard_first_module, "END_WAIT_S", 0.2)
    await beat(node, believes=False)
    near = pool.peer.near
    noted(node)
    other = ReportNode("n2")
    try:
        await other.connect(pool.address)
        await other.announce()
        await until(lambda: node.connection.closed.done() or not near)
        assert not pool.first.peers
    finally:
        await other.close()


async def test_one_whose_blocks_are_not_all_known_waits_for_its_answers(pool: Pool) -> None:
    node = ReportNode()
    try:
        await node.connect(pool.address)
        assert not (await node.announce()).heard_first
        assert not await beat(node, believes=False)
        await node.start_stream([])
        assert await beat(node, believes=False) is pool.peer.near
    finally:
        await node.close()


async def test_whose_connection_is_over_is_heard_no_more(pool: Pool) -> None:
    node = ReportNode()
    await node.join(pool.address, [])
    await node.close()
    await until(lambda: not pool.first.peers)


async def test_operators_hear_of_it_too(pool: Pool) -> None:
    sink = Sink(pool.first)
    pool.first.peers[cast(Peer, sink)] = None
    gateway = Gateway(pool.parts, asyncio.get_running_loop())
    assert await gateway.read(lambda parts: sink.heard) == 1
    pool.first.gone(cast(Peer, sink))


class Sink:
    """A Peer's part that HeardFirst sees. Whoever is heard asks something itself."""

    numbers = itertools.count()

    def __init__(self, first: HeardFirst, *, near: bool = True) -> None:
        self.near, self.heard, self._first = near, 0, first

    def hear(self) -> None:
        self.heard += 1
        self._first.hear(cast(Peer, self))


async def test_everybody_else_is_heard_once() -> None:
    first = HeardFirst()
    mine, others, far = (cast(Peer, Sink(first, near=near)) for near in (True, True, False))
    told = [first.answer(peer, alone=True, believes=False) for peer in (mine, others, far)]
    assert told == [True, True, False] == [first.told(peer) for peer in (mine, others, far)]

    def heard() -> list[int]:
        return [cast(Sink, peer).heard for peer in (mine, others, far)]

    first.hear(mine)
    assert heard() == [0, 1, 0]
    first.hear(far)
    assert heard() == [1, 2, 0]
    assert not first.answer(others, alone=False, believes=True)
    first.hear(mine)
    assert heard() == [1, 3, 0], "until it knows"
    assert not first.answer(others, alone=False, believes=False)
    first.gone(others)
    first.hear()
    assert heard() == [2, 3, 0]
