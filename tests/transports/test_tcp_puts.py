"""Puts over lanes of nodes whose data port misbehaves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from msgspec.structs import replace
from support.waiting import at_most, soon
from transports.bad_node import BadNode, Serve, info_of, read_frame
from transports.memory_transport import batch_of, scattered, write_of

from moonpool.schemas.errors import KeyspaceUnknown
from moonpool.schemas.framing import PROTOCOL_VERSION, encode_frame
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import (
    Failed,
    Granted,
    Hello,
    KeyspaceRegistered,
    LaneData,
    LaneWrite,
    RegisterKeyspace,
    Status,
    decode_lane_request,
    encode,
)
from moonpool.store_client import native
from moonpool.store_client.transports import tcp
from moonpool.store_client.transports.tcp import TcpTransport

SIZE, PIECES = 3 << 20, 6
MakeNode = Callable[..., tuple[BadNode, TcpTransport]]
needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")


@pytest.fixture(params=[pytest.param(True, marks=needs_c), False], ids=["c", "python"])
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeNode]:
    monkeypatch.setattr(native, "HOT", request.param)
    with ExitStack() as stack:

        def make(*serve: Serve) -> tuple[BadNode, TcpTransport]:
            bad = BadNode(*serve)
            stack.callback(bad.close)
            hello = Hello(PROTOCOL_VERSION, "data", "test")
            info = replace(info_of(bad, door=False), page_bytes=64 << 20)
            transport = TcpTransport(info, hello, 2, lambda keyspace: objects_keyspace())
            stack.callback(transport.close)
            return bad, transport

        yield make


def take(sock: socket.socket, size_bytes: int) -> bytes:
    came = bytearray()
    while len(came) < size_bytes:
        part = sock.recv(1 << 20)
        if not part:
            raise EOFError
        came += part
    return bytes(came)


def granted(*statuses: Status) -> bytes:
    count = len(statuses)
    return encode_frame(1, encode(Granted(1, bytes(statuses), bytes(4 * count), bytes(8 * count))))


def put(transport: TcpTransport, memory: np.ndarray, timeout_s: float = 30.0) -> list[int]:
    """Two objects in PIECES pieces each."""
    batch = write_of(scattered(memory, 2, PIECES, SIZE // PIECES))
    return list(transport.write([batch], time.monotonic() + timeout_s)[0])


def memory_of() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, 2 * SIZE, dtype=np.uint8)


def test_every_byte_arrives_in_order(node: MakeNode) -> None:
    came: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        while True:
            request = decode_lane_request(read_frame(sock))
            assert isinstance(request, LaneWrite)
            came.append(take(sock, 2 * SIZE))
            sock.sendall(granted(Status.OK, Status.NO_SPACE))

    _, transport = node(serve)
    memory = memory_of()
    for _ in range(2):
        assert put(transport, memory) == [Status.OK, Status.NO_SPACE]
    pieces = memory.reshape(PIECES, 2, -1)  # all first pieces, then all second ones
    assert came == [pieces[:, 0].tobytes() + pieces[:, 1].tobytes()] * 2


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"\xff" * 100,
        granted(Status.OK),
        granted(Status.OK, Status.OK)[:-3],
        encode_frame(1, encode(Failed(-1, "no"))),
        encode_frame(1, encode(LaneData(b"\0\0"))),
    ],
    ids=["closes", "noise", "another count", "half an answer", "a refusal", "another answer"],
)
@pytest.mark.parametrize("early", [False, True], ids=["after the payload", "in the middle of it"])
def test_nonsense_fails_and_is_left(node: MakeNode, reply: bytes, early: bool) -> None:
    def serve(sock: socket.socket) -> None:
        read_frame(sock)
        take(sock, SIZE if early else 2 * SIZE)
        sock.sendall(reply)

    def good(sock: socket.socket) -> None:
        read_frame(sock)
        take(sock, 2 * SIZE)
        sock.sendall(granted(Status.OK, Status.OK))
        sock.recv(1)

    bad, transport = node(serve, good)
    memory = memory_of()
    assert put(transport, memory) == [Status.FAILED] * 2
    assert put(transport, memory) == [Status.OK] * 2
    assert bad.connections == 2


@pytest.mark.parametrize("reads", [True, False], ids=["says nothing", "takes nothing"])
def test_silence_costs_one_deadline(node: MakeNode, reads: bool) -> None:
    def silent(sock: socket.socket) -> None:
        read_frame(sock)
        if reads:
            take(sock, 2 * SIZE)
        time.sleep(1.6)

    _, transport = node(silent)
    memory = np.zeros(2 * SIZE, dtype=np.uint8)
    start_s = time.monotonic()
    assert put(transport, memory, timeout_s=1.5) == [Status.FAILED] * 2
    assert time.monotonic() - start_s < at_most(1.5)


def test_a_lane_that_died_idle_costs_a_repeat(node: MakeNode) -> None:
    def once(sock: socket.socket) -> None:
        read_frame(sock)
        take(sock, 2 * SIZE)
        sock.sendall(granted(Status.OK, Status.OK))

    bad, transport = node(once)
    for _ in range(3):
        assert put(transport, memory_of()) == [Status.OK] * 2
        time.sleep(0.05)
    assert bad.connections == 3


def test_a_node_that_forgot_the_keyspace_is_told_it(node: MakeNode) -> None:
    asked: list[str] = []

    def serve(sock: socket.socket) -> None:
        known = False
        while True:
            request = decode_lane_request(read_frame(sock))
            asked.append(type(request).__name__)
            if isinstance(request, RegisterKeyspace):
                known = True
                sock.sendall(encode_frame(1, encode(KeyspaceRegistered(request.spec.digest(), 1))))
                continue
            take(sock, 2 * SIZE)
            error = KeyspaceUnknown(keyspace="k")
            refusal = encode_frame(1, encode(Failed(error.code, str(error))))
            sock.sendall(granted(Status.OK, Status.OK) if known else refusal)

    _, transport = node(serve)
    assert put(transport, memory_of()) == [Status.OK] * 2
    assert asked == ["LaneWrite", "RegisterKeyspace", "LaneWrite"]


def test_large_reads_have_a_thread_a_lane_where_there_are_cores(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole exchanges behind each other on each lane: two of them, on two, neither of which waits for the other."""
    monkeypatch.setattr(tcp, "CORES", 16)
    monkeypatch.setattr(tcp, "LANE_BYTES_MIN", 1 << 20)
    monkeypatch.setattr(tcp, "THREADS_FROM_BYTES", 1)
    monkeypatch.setattr(tcp, "EXCHANGE_OBJECTS", 1)

    both = threading.Barrier(2)

    def serve(sock: socket.socket) -> None:
        while True:
            read_frame(sock)
            both.wait(60)
            frame = encode_frame(1, encode(LaneData(bytes([Status.MISSING]))))
            sock.sendall(frame)

    bad, transport = node(serve)
    into = scattered(np.zeros(4 * SIZE, dtype=np.uint8), 4, 1, SIZE)
    assert transport.read(batch_of(range(4), into), soon()).tolist() == [Status.MISSING] * 4
    assert bad.connections == 2
