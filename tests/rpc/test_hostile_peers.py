"""Peers that send garbage, too much, too little, or don't read: the server answers the others all the while."""

from __future__ import annotations

import random
import socket
import struct
import time

import pytest
from support.echo_server import HELLO, KEYSPACE, MATCH, ThreadedServer
from support.processes import ServerProcess
from support.raw_peer import RawPeer
from support.waiting import at_most, soon, wait_until

from moonpool.schemas.errors import InvalidParams, ProtocolError, VersionMismatch
from moonpool.schemas.framing import FRAME_BYTES_MAX, PREFIX, encode_frame, with_trace
from moonpool.schemas.messages import (
    Done,
    Failed,
    GetStatus,
    Hello,
    Locate,
    Matched,
    Present,
    Remove,
    Unpin,
    Welcome,
    decode_from_master,
    encode,
)
from moonpool.store_client.rpc.connection_pool import ConnectionPool
from moonpool.store_client.rpc.peer import Limits

MIB = 1 << 20


def is_served(address: str) -> bool:
    pool = ConnectionPool(address, HELLO, decode_from_master)
    try:
        return pool.call(MATCH, soon()) == Matched([5])
    finally:
        pool.close()


BEFORE_HELLO = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "4 GiB prefix": struct.pack("<II", 0xFFFFFFFF, 1) + bytes(100),
    "over the handshake's limit": encode_frame(1, bytes(5000)),
    "empty frame": PREFIX.pack(4, 1),
    "length 0": PREFIX.pack(0, 1),
    "no message": encode_frame(1, b"\xc1" * 50),
    "deep nesting": encode_frame(1, b"\x91" * 4000),
    "huge array": encode_frame(1, b"\xdd\xff\xff\xff\xff"),
    "request before Hello": encode_frame(1, encode(MATCH)),
    "id 0": encode_frame(0, encode(HELLO)),
}


@pytest.mark.parametrize("garbage", BEFORE_HELLO.values(), ids=BEFORE_HELLO.keys())
def test_garbage_before_hello_is_told_and_closed(server: ThreadedServer, garbage: bytes) -> None:
    with RawPeer(server.address) as peer:
        peer.socket.sendall(garbage)
        request_id, reply = peer.receive()
        assert request_id == 0
        assert isinstance(reply, Failed)
        assert reply.code == ProtocolError.code
        assert peer.is_closed()
    assert server.handler.connects == 0
    assert is_served(server.address)


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack("<II", 0xFFFFFFFF, 1),
        PREFIX.pack(FRAME_BYTES_MAX + 1, 1),
        PREFIX.pack(3, 1),
        encode_frame(0, encode(MATCH)),
        encode_frame(2, encode(HELLO)),
    ],
    ids=["4 GiB prefix", "just over", "too short", "id 0", "second Hello"],
)
def test_a_broken_stream_after_hello_is_told_and_closed(server: ThreadedServer, garbage: bytes) -> None:
    with RawPeer(server.address) as peer:
        assert isinstance(peer.greet(), Welcome)
        peer.socket.sendall(garbage)
        _, reply = peer.receive()
        assert isinstance(reply, Failed)
        assert reply.code == ProtocolError.code
        assert peer.is_closed()
    wait_until(lambda: server.handler.disconnects == 1)
    assert is_served(server.address)


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        b"\x93\xa5Match\x01\x02",
        b"\x92\xa7Unknown\x01",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xa5Match",
    ],
    ids=["no type", "wrong types", "unknown message", "deep nesting", "huge array", "text"],
)
def test_a_whole_frame_that_is_no_message_costs_only_itself(server: ThreadedServer, body: bytes) -> None:
    with RawPeer(server.address) as peer:
        peer.greet()
        peer.socket.sendall(encode_frame(9, body))
        request_id, reply = peer.receive()
        assert isinstance(reply, Failed)
        assert (request_id, reply.code) == (9, InvalidParams.code)
        peer.send(10, MATCH)
        assert peer.receive() == (10, Matched([5]))


def test_random_bytes_never_stop_the_server(process: ServerProcess) -> None:
    noise = random.Random(3)
    for step in range(150):
        with RawPeer(process.address) as peer:
            if step % 2:
                peer.greet()
            frames = bytearray(encode_frame(7, encode(MATCH)) * 5)
            for _ in range(noise.randrange(1, 20)):
                frames[noise.randrange(len(frames))] = noise.randrange(256)
            peer.socket.sendall(frames[: noise.randrange(1, len(frames))])
    assert is_served(process.address)
    wait_until(lambda: process.descriptors() < 20)
    assert "failed on" not in process.output()


def test_a_frame_that_comes_byte_by_byte_is_a_frame(server: ThreadedServer) -> None:
    with RawPeer(server.address) as peer:
        for byte in encode_frame(1, encode(HELLO)) + encode_frame(2, encode(MATCH)):
            peer.socket.sendall(bytes([byte]))
        assert isinstance(peer.receive()[1], Welcome)
        assert peer.receive() == (2, Matched([5]))


def test_another_version_is_told_which_is_spoken_here(server: ThreadedServer) -> None:
    with RawPeer(server.address) as peer:
        peer.send(1, Hello(protocol=2, role="client", client="newer"))
        request_id, reply = peer.receive()
        assert isinstance(reply, Failed)
        assert (request_id, reply.code) == (1, VersionMismatch.code)
        assert "version 2 was offered, this side speaks 1" in reply.message
        assert peer.is_closed()


def test_half_open_and_half_sent_connections_are_closed_in_time() -> None:
    with ThreadedServer(Limits(handshake_timeout_s=1.5, stall_timeout_s=0.5)) as server:
        silent = RawPeer(server.address)
        partial = RawPeer(server.address)
        idle = RawPeer(server.address)
        partial.greet()
        idle.greet()
        start_s = time.monotonic()
        with pytest.raises(ConnectionError):  # a trickle doesn't count as progress
            for byte in PREFIX.pack(50_000, 2) + bytes(50_000):
                partial.socket.sendall(bytes([byte]))
                time.sleep(0.02)
                assert time.monotonic() - start_s < at_most(0.5)
        assert silent.is_closed()
        assert time.monotonic() - start_s < at_most(1.5)
        idle.send(2, MATCH)  # a greeted connection may be silent as long as it likes
        assert idle.receive() == (2, Matched([5]))
        for peer in (silent, partial, idle):
            peer.socket.close()


def test_those_who_hoard_partial_frames_go_and_others_do_not() -> None:
    with ThreadedServer(Limits(buffered_bytes_max=4 * MIB)) as server:
        hoarders = [RawPeer(server.address) for _ in range(3)]
        for hoarder in hoarders:
            hoarder.greet()
            hoarder.socket.sendall(PREFIX.pack(2 * MIB, 3) + bytes(MIB + 300_000))
        wait_until(lambda: server._server._service.buffered_bytes > 3 * MIB)
        modest = RawPeer(server.address)
        modest.greet()
        frame = encode_frame(5, encode(Present(bytes(MIB))))
        modest.socket.sendall(frame[:-100])  # with this it is too much
        wait_until(lambda: server.handler.disconnects == 1)
        modest.socket.sendall(frame[-100:])
        assert modest.receive()[0] == 5
        for peer in (*hoarders, modest):
            peer.socket.close()
        wait_until(lambda: server.connections == 0)
        assert server._server._service.buffered_bytes == 0


def test_partial_frames_of_all_connections_together_are_bounded() -> None:
    with ThreadedServer(Limits(buffered_bytes_max=4 * MIB)) as server:
        peers = [RawPeer(server.address) for _ in range(8)]
        for peer in peers:
            peer.greet()
            peer.socket.sendall(PREFIX.pack(2 * MIB, 3) + bytes(MIB))
        wait_until(lambda: server.handler.disconnects >= 4)
        assert is_served(server.address)
        for peer in peers:
            peer.socket.close()
        wait_until(lambda: server.connections == 0)
        assert server._server._service.buffered_bytes == 0


def test_prefixes_of_huge_frames_take_no_memory(process: ServerProcess) -> None:
    assert is_served(process.address)
    before_bytes = process.resident_bytes()
    peers = [RawPeer(process.address) for _ in range(200)]
    for peer in peers:
        peer.greet()
        peer.socket.sendall(PREFIX.pack(FRAME_BYTES_MAX, 3) + bytes(100))
    assert is_served(process.address)
    assert process.resident_bytes() - before_bytes < 16 * MIB
    for peer in peers:
        peer.socket.close()


def test_a_slow_reader_is_not_read_and_then_closed(process: ServerProcess) -> None:
    """Its replies, 1 GiB if all were made, stay unmade; after stall_timeout_s (2 s here) it is closed."""
    assert is_served(process.address)
    before_bytes = process.resident_bytes()
    with RawPeer(process.address, receive_buffer_bytes=4096) as peer:
        peer.greet()
        for i in range(1000):
            peer.send(2 + i, Locate(KEYSPACE, rank=MIB))
        assert is_served(process.address)
        assert process.resident_bytes() - before_bytes < 32 * MIB
        wait_until(lambda: "replies unread for 2 s" in process.output())
        assert peer.is_closed()


def test_a_peer_that_reads_again_gets_every_reply(server: ThreadedServer) -> None:
    with RawPeer(server.address, receive_buffer_bytes=4096) as peer:
        peer.greet()
        for i in range(100):
            peer.send(2 + i, Locate(KEYSPACE, rank=100_000))
        time.sleep(0.3)
        assert [peer.receive()[0] for _ in range(100)] == list(range(2, 102))


def test_pushes_to_a_peer_that_does_not_read_end_it() -> None:
    with ThreadedServer(Limits(push_bytes_max=MIB)) as server, RawPeer(server.address, 4096) as peer:
        peer.greet()
        peer.send(2, Unpin(KEYSPACE, bytes(200_000)))
        wait_until(lambda: server.handler.disconnects == 1)
        assert is_served(server.address)


def test_a_push_larger_than_a_frame_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadedServer(Limits(frame_bytes_max=1000)) as server, RawPeer(server.address) as peer:
        peer.greet()
        results: list[bool] = []
        server.in_loop(lambda: results.append(server.handler.peers[0].push(Present(bytes(2000)))))
        wait_until(lambda: results == [False])
        assert "too large to push" in caplog.text
        peer.send(2, MATCH)
        assert peer.receive() == (2, Matched([5]))


def test_a_push_to_a_dead_connection_says_so(server: ThreadedServer) -> None:
    results: list[bool] = []
    with RawPeer(server.address) as peer:
        peer.greet()
        target = server.handler.peers[0]
        server.in_loop(lambda: results.append(target.push(Done())))
        assert peer.receive() == (0, Done())
    wait_until(lambda: server.handler.disconnects == 1)
    server.in_loop(lambda: results.append(target.push(Done())))
    wait_until(lambda: results == [True, False])


def test_a_client_that_leaves_mid_request_cancels_it(server: ThreadedServer) -> None:
    with RawPeer(server.address) as peer:
        peer.greet()
        for i in range(10):
            peer.send(2 + i, Remove(KEYSPACE, b"", wait_ms=30_000))
        wait_until(lambda: server.handler.handled == 10)
    wait_until(lambda: server.handler.cancelled == 10)
    wait_until(lambda: server.connections == 0)


def test_a_reset_connection_is_gone(server: ThreadedServer) -> None:
    with RawPeer(server.address) as peer:
        peer.greet()
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: server.handler.disconnects == 1)


def test_floods_that_end_in_a_reset_leave_no_trace(process: ServerProcess) -> None:
    noise = random.Random(5)
    requests = [
        MATCH,
        Remove(KEYSPACE, b"", wait_ms=5),
        Locate(KEYSPACE, rank=100_000),
        Unpin(KEYSPACE, bytes(50)),
    ]
    frames = b"".join(encode_frame(2 + i, encode(requests[i % 4])) for i in range(400))
    before = process.descriptors()
    for _ in range(60):
        with RawPeer(process.address) as peer:
            peer.greet()
            peer.socket.sendall(frames[: noise.randrange(len(frames))])
            time.sleep(noise.random() * 0.01)
            if noise.random() < 0.7:
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert is_served(process.address)
    wait_until(lambda: process.descriptors() <= before)
    assert "Traceback" not in process.output()


@pytest.mark.parametrize("traced", [False, True])
def test_marks_of_traces_end_nothing(traced: bool) -> None:
    """A server that makes no spans never says that it reads them; whoever sends them all the same is told so."""
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    good = with_trace(parent, encode(GetStatus()))
    bad = (b"\xc1", b"\xc1" + bytes(200), with_trace(parent, b""), with_trace("0" * 55, encode(GetStatus())))
    if traced:
        pytest.importorskip("opentelemetry.trace")
    with ThreadedServer(traced=traced) as server, RawPeer(server.address) as peer:
        welcome = peer.greet()
        assert isinstance(welcome, Welcome) and welcome.traces is traced
        for number, body in enumerate(bad if traced else (*bad, good), 2):
            peer.socket.sendall(encode_frame(number, body))
            reply = peer.receive()[1]
            assert isinstance(reply, Failed) and reply.code == InvalidParams.code
        if traced:
            peer.socket.sendall(encode_frame(99, good))
            assert not isinstance(peer.receive()[1], Failed)
        assert is_served(server.address)
