"""What a node has sent through the near door is taken in before anybody is answered, while it is alone in its pool."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable

import pytest
from support.report_node import KEYSPACE, ReportNode, chain, entries_of
from support.waiting import until

from moonpool.master.heard_first import HeardFirst
from moonpool.master.rest.gateway import Gateway
from moonpool.master.server import MasterServer
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    Announced,
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


async def test_a_node_is_told_while_it_is_alone(pool: Pool, node: ReportNode) -> None:
    near = pool.peer.near
    assert (await node.heartbeat()).heard_first is near
    assert len(pool.first.peers) == near
    pushed: list[Announced] = []
    take = node.connection._on_push
    assert take is not None

    def note(message: Message) -> None:
        if isinstance(message, Announced):
            pushed.append(message)

    node.connection._on_push = note
    other = ReportNode("n2")
    try:
        await other.connect(pool.address)
        assert (await other.announce()).heard_first is False
        await until(lambda: bool(pushed) or not near)
        assert not any(one.heard_first for one in pushed)
        assert len(pool.first.peers) == near, "it may not have read it yet"
        assert (await node.heartbeat()).heard_first is False
        assert (await node.heartbeat()).heard_first is False
        assert not pool.first.peers, "it knows"
    finally:
        await other.close()
    node.connection._on_push = take
    assert (await node.heartbeat()).heard_first is False, "who has gone may come back with what it holds"


async def test_whose_connection_is_over_is_heard_no_more(pool: Pool) -> None:
    node = ReportNode()
    await node.join(pool.address, [])
    await node.close()
    await until(lambda: not pool.first.peers)


async def test_operators_hear_of_it_too(pool: Pool) -> None:
    sink = Sink(pool.first)
    pool.first.peers[sink] = True  # type: ignore[index]
    gateway = Gateway(pool.parts, asyncio.get_running_loop())
    assert await gateway.read(lambda parts: sink.heard) == 1
    del pool.first.peers[sink]  # type: ignore[arg-type]


class Sink:
    """A Peer's part that HeardFirst sees. Whoever is heard asks something itself."""

    numbers = itertools.count()

    def __init__(self, first: HeardFirst, *, near: bool = True) -> None:
        self.near, self.heard, self._first = near, 0, first

    def hear(self) -> None:
        self.heard += 1
        self._first.hear(self)  # type: ignore[arg-type]


def test_everybody_else_is_heard_once() -> None:
    first = HeardFirst()
    mine, others, far = Sink(first), Sink(first), Sink(first, near=False)
    assert [first.tell(peer, True) for peer in (mine, others, far)] == [True, True, False]  # type: ignore[arg-type]
    first.hear(mine)  # type: ignore[arg-type]
    assert (mine.heard, others.heard, far.heard) == (0, 1, 0)
    first.hear(far)  # type: ignore[arg-type]
    assert (mine.heard, others.heard, far.heard) == (1, 2, 0)
    assert first.others(mine) == [others]  # type: ignore[arg-type,comparison-overlap]
    assert not first.tell(others, False)  # type: ignore[arg-type]
    assert first.others(mine) == []  # type: ignore[arg-type]
    first.hear(mine)  # type: ignore[arg-type]
    assert others.heard == 3, "until it has heard that"
    first.gone(others)  # type: ignore[arg-type]
    first.gone(others)  # type: ignore[arg-type]
    first.hear(mine)  # type: ignore[arg-type]
    assert others.heard == 3
