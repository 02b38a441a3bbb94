"""A server that takes in what one connection has sent before it answers another: all that lies in the socket by then, and
nothing breaks by it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
import uvloop
from support.echo_server import HELLO, KEYSPACE, MATCH, ThreadedServer
from support.raw_peer import RawPeer
from support.waiting import wait_until

from moonpool.schemas.framing import PROTOCOL_VERSION, encode_frame
from moonpool.schemas.messages import Hello, Locate, Match, Matched, decode_from_master, encode
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection
from moonpool.store_client.rpc.peer import Limits, Peer

T = TypeVar("T")
LIMITS = Limits(turn_frames=4, inflight_max=8, write_bytes_max=4096, turns_heard=40)
LARGE = Locate(KEYSPACE, 300_000)


def match_frame(request_id: int) -> bytes:
    return encode_frame(request_id, encode(MATCH))


class Heard:
    """One raw connection through the near door, and the server's end of it."""

    def __init__(self, server: ThreadedServer, role: str = "client") -> None:
        self._server = server
        self.raw = RawPeer(server.address)
        self.raw.socket.close()
        door = server._server._service.near
        assert door is not None
        self.raw.socket = socket.socket(socket.AF_UNIX)
        self.raw.socket.settimeout(60)
        self.raw.socket.connect(f"\0{door.name}")
        known = list(server.handler.peers)
        self.raw.send(1, Hello(PROTOCOL_VERSION, role, "test"))
        self.raw.receive()
        wait_until(lambda: len(server.handler.peers) > len(known))
        (self.peer,) = (peer for peer in server.handler.peers if peer not in known)

    def in_loop(self, call: Callable[[], T]) -> T:
        """What it returns, done in one step of the server's loop: nothing is read meanwhile."""
        done: list[T | BaseException] = []
        ready = threading.Event()

        def step() -> None:
            try:
                done.append(call())
            except BaseException as error:  # noqa: BLE001 - raised again where the test is
                done.append(error)
            ready.set()

        self._server.in_loop(step)
        assert ready.wait(60)
        if isinstance(done[0], BaseException):
            raise done[0]
        return done[0]

    def hear(self, *sent: bytes, meanwhile: Callable[[], object] = lambda: None) -> int:
        """Requests that were handled by the time when what is sent was heard."""

        def step() -> int:
            for data in sent:
                self.raw.socket.sendall(data)
            meanwhile()
            before = self._server.handler.handled
            self.peer.hear()
            return self._server.handler.handled - before

        return self.in_loop(step)


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    with ThreadedServer(LIMITS, near=True) as server:
        yield server


@pytest.fixture
def heard(server: ThreadedServer) -> Iterator[Heard]:
    heard = Heard(server)
    with contextlib.closing(heard.raw.socket):
        yield heard
    wait_until(lambda: heard.peer not in server.handler.peers)


def test_all_that_was_sent_is_handled_at_once_and_in_order(heard: Heard) -> None:
    frames = [match_frame(request_id) for request_id in range(2, 102)]
    assert heard.hear() == 0
    assert heard.hear(b"".join(frames)) == 100, "many turns' worth"
    assert heard.hear() == 0
    assert [heard.raw.receive() for _ in frames] == [(n, Matched([5])) for n in range(2, 102)]


def test_half_a_frame_waits_for_the_rest(heard: Heard) -> None:
    frame = match_frame(2)
    assert heard.hear(frame + frame[:9]) == 1
    assert heard.hear(frame[9:]) == 1
    assert heard.hear(frame[:2]) == 0
    heard.raw.socket.sendall(frame[2:])  # as ever
    assert [heard.raw.receive()[0] for _ in range(3)] == [2, 2, 2]


def test_what_an_earlier_turn_has_left_goes_first(heard: Heard) -> None:
    """The loop has read more than it serves in a turn."""
    frames = b"".join(match_frame(request_id) for request_id in range(2, 22))
    connection = heard.peer

    def read_by_the_loop() -> None:
        connection.data_received(frames)  # type: ignore[attr-defined]

    assert heard.hear(meanwhile=read_by_the_loop) == 20 - LIMITS.turn_frames
    assert heard.hear(match_frame(22), meanwhile=read_by_the_loop) == 21 - LIMITS.turn_frames
    got = [heard.raw.receive()[0] for _ in range(41)]
    assert got == [*range(2, 22), *range(2, 22), 22]


def test_a_peer_that_reads_nothing_is_heard_all_the_same(heard: Heard, server: ThreadedServer) -> None:
    heard.raw.send(2, LARGE)
    heard.raw.send(3, LARGE)
    wait_until(lambda: heard.in_loop(lambda: heard.peer._blocked))  # type: ignore[attr-defined]
    assert heard.hear(match_frame(4), match_frame(5)) >= 2
    assert [heard.raw.receive()[0] for _ in range(4)] == [2, 3, 4, 5]


def test_one_that_goes_on_sending_is_cut_short(heard: Heard, server: ThreadedServer) -> None:
    frames = match_frame(2)

    def send_more(peer: Peer) -> None:
        with contextlib.suppress(BlockingIOError):
            heard.raw.socket.send(frames)

    heard.raw.socket.setblocking(False)
    server.handler.note = send_more
    try:
        assert heard.hear(frames * 2) == 2, "what came meanwhile is for the next time"
    finally:
        server.handler.note = lambda peer: None


def test_one_that_has_sent_more_than_any_node_is_shut_out(heard: Heard) -> None:
    assert heard.hear(match_frame(2) * 300) == LIMITS.turns_heard * LIMITS.turn_frames
    assert heard.raw.is_closed()


def test_of_a_large_socket_all_is_heard(heard: Heard) -> None:
    heard.raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    large = encode_frame(2, encode(Match(KEYSPACE, [(5, bytes(50_000))])))
    sent_bytes = min(heard.raw.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2, 2 << 20)
    count = sent_bytes // len(large)
    assert heard.hear(large * count) == count


def test_noise_ends_its_connection_alone(heard: Heard, server: ThreadedServer) -> None:
    assert heard.hear(b"\xff" * 64) == 0
    assert heard.raw.is_closed()
    assert heard.hear() == 0, "it is gone"
    with RawPeer(server.address) as other:
        other.greet()
        other.send(2, MATCH)
        assert other.receive() == (2, Matched([5]))


def test_what_a_peer_sent_before_it_went_is_heard(heard: Heard) -> None:
    assert heard.hear(match_frame(2), meanwhile=heard.raw.socket.close) == 1
    assert heard.hear() == 0


def test_a_request_of_its_own_hears_nothing(heard: Heard, server: ThreadedServer) -> None:
    server.handler.note = lambda peer: peer.hear()
    try:
        assert heard.hear(*[match_frame(n) for n in range(2, 12)]) == 10
        heard.raw.socket.sendall(b"".join(match_frame(n) for n in range(12, 22)))
        assert [heard.raw.receive()[0] for _ in range(20)] == list(range(2, 22))
    finally:
        server.handler.note = lambda peer: None


def test_only_who_came_through_the_near_door_is_near(heard: Heard, server: ThreadedServer) -> None:
    assert heard.peer.near
    with RawPeer(server.address) as other:
        other.greet()
        wait_until(lambda: any(not peer.near for peer in server.handler.peers))


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_an_asynchronous_peer_comes_through_it_too(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """As nodes do, on uvloop."""
    run(come_through())


async def come_through() -> None:
    with ThreadedServer(near=True) as server:
        connection = await AsyncRpcConnection.connect(
            server.address, HELLO, decode_from_master, timeout_s=30.0
        )
        assert server.handler.peers[-1].near
        await connection.close()


def test_what_a_node_sent_is_heard_although_it_can_t_be_answered(server: ThreadedServer) -> None:
    """It has gone while the server was at its first requests, and the answers to these find nobody."""
    heard = Heard(server, "node")
    before = server.handler.handled

    def served_by_the_loop() -> None:
        heard.raw.socket.sendall(match_frame(2) * 20)
        heard.raw.socket.close()
        heard.peer.data_received(match_frame(2) * 20)  # type: ignore[attr-defined]

    heard.in_loop(served_by_the_loop)
    wait_until(lambda: heard.peer not in server.handler.peers)
    assert server.handler.handled == before + 40


def test_and_before_another_is_answered(server: ThreadedServer) -> None:
    heard = Heard(server, "node")

    def gone_with_the_first_answer() -> None:
        heard.raw.socket.close()
        heard.peer.data_received(match_frame(2) * 20)  # type: ignore[attr-defined]

    assert heard.hear(match_frame(2) * 20, meanwhile=gone_with_the_first_answer) == 40 - LIMITS.turn_frames
    wait_until(lambda: heard.peer not in server.handler.peers)
