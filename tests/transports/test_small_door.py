"""Small objects through a node's RPC port: what is asked there, and what is made of answers that are wrong."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from support.waiting import at_most, soon
from transports.bad_node import SIZE, WRONG_HEADERS, BadNode, Serve, header, info_of, read_frame, read_request
from transports.memory_transport import batch_of, scattered

from moonpool.schemas.errors import KeyspaceUnknown, NotFound
from moonpool.schemas.framing import PREFIX, PROTOCOL_VERSION, encode_frame
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import (
    SMALL_BYTES,
    SMALL_OBJECTS,
    BeginItem,
    Committed,
    Done,
    Failed,
    GetSmall,
    Hello,
    KeyspaceRegistered,
    LaneData,
    LaneRead,
    LaneWrite,
    Message,
    PutSmall,
    SmallData,
    Status,
    decode_lane_request,
    decode_node_request,
    encode,
)
from moonpool.schemas.packed import pack_u64
from moonpool.store_client import native
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.transports.base import WriteBatch
from moonpool.store_client.transports.small_door import SMALL_PIECES
from moonpool.store_client.transports.tcp import TcpTransport

MakeNode = Callable[..., tuple[BadNode, TcpTransport]]
OK, MISSING = bytes([Status.OK]), bytes([Status.MISSING])
PAYLOAD = b"p" * SIZE
GOOD = SmallData(OK, PAYLOAD, header())


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeNode]:
    """Without C: else reads would go over lanes."""
    with ExitStack() as stack:

        def make(
            *serve: Serve, hot: bool = False, credentials: Credentials = NO_CREDENTIALS
        ) -> tuple[BadNode, TcpTransport]:
            monkeypatch.setattr(native, "HOT", hot)
            bad = BadNode(*serve)
            stack.callback(bad.close)
            hello = Hello(PROTOCOL_VERSION, "data", "test")
            transport = TcpTransport(info_of(bad, door=True), hello, 2, lambda keyspace: None, credentials)
            stack.callback(transport.close)
            return bad, transport

        yield make


def says(*replies: Message | bytes) -> Serve:
    """One after the other, to one request each; bytes are the whole frame."""

    def serve(sock: socket.socket) -> None:
        for reply in replies:
            request_id, _ = read_request(sock)
            sock.sendall(reply if isinstance(reply, bytes) else encode_frame(request_id, encode(reply)))

    return serve


def read(transport: TcpTransport, memory: np.ndarray, timeout_s: float = 30.0) -> list[int]:
    count = len(memory) // SIZE
    batch = batch_of(range(count), scattered(memory, count, 1, SIZE))
    return list(transport.read(batch, time.monotonic() + timeout_s))


def room(count: int = 1) -> np.ndarray:
    return np.zeros(count * SIZE, dtype=np.uint8)


def test_objects_that_came_land_where_they_belong(node: MakeNode) -> None:
    """Of three the second one is missing; each lies in four pieces."""
    statuses = OK + MISSING + OK
    bad, transport = node(says(SmallData(statuses, b"a" * SIZE + b"b" * SIZE, header() * 2)))
    memory = room(3)
    batch = batch_of([0, 1, 2], scattered(memory, 3, 4, SIZE // 4))
    assert bytes(transport.read(batch, soon())) == statuses
    grid = memory.reshape(4, 3, SIZE // 4)
    assert [set(grid[:, i].ravel().tolist()) for i in range(3)] == [{ord("a")}, {0}, {ord("b")}]
    assert bad.connections == 1


@pytest.mark.parametrize("fields", WRONG_HEADERS, ids=str)
def test_a_header_that_says_anything_else_is_a_miss(node: MakeNode, fields: dict[str, object]) -> None:
    _, transport = node(says(SmallData(OK, PAYLOAD, header(**fields))))
    assert read(transport, room()) == [Status.MISSING]


def test_another_checksum_is_corrupt(node: MakeNode) -> None:
    _, transport = node(says(SmallData(OK, PAYLOAD, header(checksum=12345))))
    assert read(transport, room()) == [Status.CORRUPT]


@pytest.mark.parametrize(
    "reply",
    [
        SmallData(b"", b"", b""),
        SmallData(OK * 2, PAYLOAD * 2, header() * 2),
        SmallData(OK, PAYLOAD[:-1], header()),
        SmallData(OK, PAYLOAD + b"p", header()),
        SmallData(OK, PAYLOAD, header()[:-1]),
        SmallData(OK, PAYLOAD, header() * 2),
        SmallData(OK, b"", b""),
        SmallData(MISSING, PAYLOAD, header()),
        Done(0),
        Failed(NotFound.code, "no such thing"),
        Failed(-1, "of another version"),
    ],
    ids=repr,
)
def test_answers_that_are_wrong_write_nothing_and_fail(node: MakeNode, reply: Message) -> None:
    _, transport = node(says(reply, GOOD))
    memory = room()
    assert read(transport, memory) == [Status.FAILED]
    assert not memory.any()
    assert read(transport, memory) == [Status.OK]
    assert memory.tobytes() == PAYLOAD


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff" * 100,
        PREFIX.pack(4 + 11, 2) + b"\xc1 no message",
        PREFIX.pack(1 << 31, 2),
        encode_frame(77, encode(GOOD)),
        encode_frame(2, encode(GOOD))[:-1],
    ],
    ids=["noise", "no message", "a frame without end", "another request's", "half an answer"],
)
def test_nonsense_fails_and_is_left(node: MakeNode, frame: bytes) -> None:
    bad, transport = node(says(frame), says(GOOD))
    memory = room()
    assert read(transport, memory) == [Status.FAILED]
    assert not memory.any()
    assert read(transport, memory) == [Status.OK]
    assert bad.connections == 2


def test_an_idle_connection_that_was_closed_is_replaced(node: MakeNode) -> None:
    bad, transport = node(says(GOOD))
    assert [read(transport, room()) for _ in range(3)] == [[Status.OK]] * 3
    assert bad.connections == 3


def test_silence_costs_one_deadline(node: MakeNode) -> None:
    def silent(sock: socket.socket) -> None:
        read_frame(sock)
        sock.recv(1)  # until the other side gives up

    bad, transport = node(silent, says(GOOD))
    start_s = time.monotonic()
    assert read(transport, room(), timeout_s=1.5) == [Status.FAILED]
    assert 1.4 < time.monotonic() - start_s < at_most(1.5)
    assert read(transport, room()) == [Status.OK]
    assert bad.connections == 2


def test_close_ends_a_read_under_way(node: MakeNode) -> None:
    asked = threading.Event()

    def silent(sock: socket.socket) -> None:
        read_frame(sock)
        asked.set()
        sock.recv(1)

    _, transport = node(silent)
    outcome: list[list[int]] = []
    thread = threading.Thread(target=lambda: outcome.append(read(transport, room(), timeout_s=60)))
    thread.start()
    assert asked.wait(60)
    start_s = time.monotonic()
    transport.close()
    thread.join()
    assert time.monotonic() - start_s < at_most(0.2)
    assert outcome == [[Status.FAILED]]


def write(
    transport: TcpTransport, count: int = 1, size: int = SIZE, keyspace: bytes = bytes(16)
) -> list[int]:
    memory = np.frombuffer(PAYLOAD * -(-count * size // SIZE), dtype=np.uint8)[: count * size].copy()
    source = scattered(memory, count, 1, size)
    item = BeginItem(keyspace, 0, 0, b"", bytes(16 * count))  # of a chain: it names no lengths
    batch = WriteBatch(item, source.lengths(), source)
    return transport.write([batch], soon())[0].tolist()


STORED = Committed([OK])


def test_a_small_put_brings_its_bytes_and_lengths(node: MakeNode) -> None:
    asked: list[Message] = []

    def note(sock: socket.socket) -> None:
        request_id, body = read_request(sock)
        asked.append(decode_node_request(body))
        sock.sendall(encode_frame(request_id, encode(Committed([OK * 3]))))

    _, transport = node(note)
    assert write(transport, count=3, size=SIZE // 2) == [Status.OK] * 3
    item = BeginItem(bytes(16), 0, 0, b"", bytes(48), pack_u64([SIZE // 2] * 3))
    assert asked == [PutSmall(item, PAYLOAD[:SIZE] + PAYLOAD[: SIZE // 2])]


@pytest.mark.parametrize(
    "reply",
    [
        Committed([]),
        Committed([b""]),
        Committed([OK * 2]),
        Committed([OK, OK]),
        GOOD,
        Done(1),
        Failed(-1, "other"),
    ],
    ids=repr,
)
def test_answers_to_a_put_that_are_wrong_fail(node: MakeNode, reply: Message) -> None:
    _, transport = node(says(reply, STORED))
    assert write(transport) == [Status.FAILED]
    assert write(transport) == [Status.OK]


def test_a_keyspace_that_the_node_has_forgotten_is_told_once(node: MakeNode) -> None:
    spec = objects_keyspace()
    unknown = Failed(KeyspaceUnknown.code, "unknown")
    registered = KeyspaceRegistered(spec.digest(), 1)
    _, transport = node(
        says(unknown, registered, STORED, unknown, registered, unknown, STORED, unknown, STORED)
    )
    transport.door._spec_of = {spec.digest(): spec}.get  # type: ignore[union-attr]
    assert write(transport, keyspace=spec.digest()) == [Status.OK]
    assert write(transport, keyspace=spec.digest()) == [Status.FAILED], "unknown again"
    assert write(transport, keyspace=spec.digest()) == [Status.OK]
    assert write(transport, keyspace=bytes(16)) == [Status.FAILED], "unknown to the client too"
    assert write(transport, keyspace=bytes(16)) == [Status.OK]


def test_a_put_that_meets_silence_costs_one_deadline(node: MakeNode) -> None:
    def silent(sock: socket.socket) -> None:
        read_frame(sock)
        sock.recv(1)

    _, transport = node(silent)
    source = scattered(room(), 1, 1, SIZE)
    batch = WriteBatch(BeginItem(bytes(16), 0, 0, b"", bytes(16)), source.lengths(), source)
    start_s = time.monotonic()
    assert transport.write([batch], start_s + 0.2)[0].tolist() == [Status.FAILED]
    assert 0.15 < time.monotonic() - start_s < at_most(0.2)


@pytest.mark.parametrize(
    ("count", "size", "asked"),
    [
        (1, SMALL_BYTES, GetSmall),
        (SMALL_OBJECTS, SMALL_BYTES // SMALL_OBJECTS, GetSmall),
        (1, 0, GetSmall),
        (1, SMALL_BYTES + 1, LaneRead),
        (SMALL_OBJECTS + 1, 1, LaneRead),
    ],
)
def test_larger_reads_go_by_lane(node: MakeNode, count: int, size: int, asked: type[Message]) -> None:
    seen: list[Message] = []

    def note(sock: socket.socket) -> None:
        body = read_frame(sock)
        decode = decode_node_request if asked is GetSmall else decode_lane_request
        seen.append(decode(body))

    _, transport = node(note)
    memory = np.zeros(max(1, count * size), dtype=np.uint8)
    transport.read(batch_of(range(count), scattered(memory, count, 1, size)), soon())
    assert {type(message) for message in seen} == {asked}


@pytest.mark.parametrize(
    ("count", "size", "asked"),
    [
        (1, SMALL_BYTES, PutSmall),
        (SMALL_PIECES, SMALL_BYTES // SMALL_PIECES, PutSmall),
        (1, SMALL_BYTES + 1, LaneWrite),
        (SMALL_PIECES + 1, 1, LaneWrite),
    ],
)
def test_larger_puts_go_by_lane(node: MakeNode, count: int, size: int, asked: type[Message]) -> None:
    seen: list[Message] = []

    def note(sock: socket.socket) -> None:
        body = read_frame(sock)
        decode = decode_node_request if asked is PutSmall else decode_lane_request
        seen.append(decode(body))

    _, transport = node(note)
    assert write(transport, count, size) == [Status.FAILED] * count
    assert {type(message) for message in seen} == {asked}


def either(sock: socket.socket) -> None:
    """Answers reads by lanes and by the door, each with a payload of its own."""
    while True:
        request_id, body = read_request(sock)
        if b"LaneRead" in body:
            sock.sendall(encode_frame(request_id, encode(LaneData(OK))) + b"l" * SIZE + header())
        else:
            sock.sendall(encode_frame(request_id, encode(SmallData(OK, b"d" * SIZE, header()))))


@pytest.mark.skipif(not native.HOT, reason="built without a compiler")
def test_reads_that_a_lane_answers_in_c_go_over_one_that_is_free(node: MakeNode) -> None:
    _, transport = node(either, hot=True)
    memory = room()
    assert read(transport, memory) == [Status.OK]
    assert memory.tobytes() == b"l" * SIZE
    lanes = [transport._lanes._take(soon()) for _ in range(2)]
    assert read(transport, memory) == [Status.OK]
    assert memory.tobytes() == b"d" * SIZE
    for lane in lanes:
        transport._lanes._give_back(lane, False)


def test_who_shows_a_token_uses_the_door(node: MakeNode) -> None:
    _, transport = node(either, hot=native.HOT, credentials=Credentials(token="secret"))
    memory = room()
    assert read(transport, memory) == [Status.OK]
    assert memory.tobytes() == b"d" * SIZE
