"""The tcp transport against nodes whose data port misbehaves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from support.waiting import at_most, soon, wait_until
from transports.bad_node import SIZE, WRONG_HEADERS, BadNode, Serve, header, info_of, read_frame
from transports.memory_transport import batch_of, scattered

from moonpool.schemas.framing import PROTOCOL_VERSION, encode_frame
from moonpool.schemas.messages import Failed, Hello, LaneData, Status, Welcome, encode
from moonpool.store_client import native
from moonpool.store_client.transports import tcp
from moonpool.store_client.transports.tcp import TcpTransport

needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")


def answer(payload: bytes = b"p" * SIZE, trailer: bytes = b"", repeat: bool = True) -> Serve:
    def serve(sock: socket.socket) -> None:
        while True:
            read_frame(sock)
            body = encode(LaneData(bytes([Status.OK])))
            sock.sendall(encode_frame(1, body) + payload + (trailer or header()))
            if not repeat:
                return

    return serve


def silent(sock: socket.socket) -> None:
    read_frame(sock)
    sock.recv(1)  # until the other side gives up


@pytest.fixture(params=[pytest.param(True, marks=needs_c), False], ids=["c", "python"])
def node(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[BadNode, TcpTransport]]]:
    monkeypatch.setattr(native, "HOT", request.param)
    monkeypatch.setattr(tcp, "LANE_BYTES_MIN", 1 << 20)  # as where there are many cores
    with ExitStack() as stack:

        def make(*serve: Serve, lanes: int = 1) -> tuple[BadNode, TcpTransport]:
            bad = BadNode(*serve)
            stack.callback(bad.close)
            hello = Hello(PROTOCOL_VERSION, "data", "test")
            transport = TcpTransport(info_of(bad, door=False), hello, lanes, lambda keyspace: None)
            stack.callback(transport.close)
            return bad, transport

        yield make


def read(transport: TcpTransport, timeout_s: float = 30.0, memory: np.ndarray | None = None) -> int:
    memory = np.zeros(SIZE, dtype=np.uint8) if memory is None else memory
    batch = batch_of([0], scattered(memory, 1, 1, SIZE))
    return int(transport.read(batch, time.monotonic() + timeout_s)[0])


def test_a_good_answer_is_taken(node: Callable[..., tuple[BadNode, TcpTransport]]) -> None:
    bad, transport = node(answer())
    memory = np.zeros(SIZE, dtype=np.uint8)
    assert [read(transport, memory=memory) for _ in range(3)] == [Status.OK] * 3
    assert memory.tobytes() == b"p" * SIZE
    assert bad.connections == 1


@pytest.mark.parametrize("fields", WRONG_HEADERS, ids=str)
def test_a_header_that_says_anything_else_is_a_miss(
    node: Callable[..., tuple[BadNode, TcpTransport]], fields: dict[str, object]
) -> None:
    _, transport = node(answer(trailer=header(**fields)))
    assert read(transport) == Status.MISSING


def test_another_checksum_is_corrupt(node: Callable[..., tuple[BadNode, TcpTransport]]) -> None:
    _, transport = node(answer(trailer=header(checksum=12345)))
    assert read(transport) == Status.CORRUPT


def test_an_idle_lane_that_was_closed_is_replaced(node: Callable[..., tuple[BadNode, TcpTransport]]) -> None:
    bad, transport = node(answer(repeat=False))
    for _ in range(3):
        assert read(transport) == Status.OK
        time.sleep(0.05)
    assert bad.connections == 3


@pytest.mark.parametrize(
    "serve",
    [
        lambda sock: None,
        lambda sock: sock.sendall(b"\xff" * 100),
        lambda sock: sock.sendall(encode_frame(1, b"\xc1 no message")),
        lambda sock: sock.sendall(encode_frame(1, encode(LaneData(b"\0\0\0")))),
        lambda sock: sock.sendall(encode_frame(1, encode(Welcome(1, "node", 0, 1)))),
        lambda sock: sock.sendall(encode_frame(1, encode(LaneData(b"\0"))) + b"half"),
        lambda sock: sock.sendall(encode_frame(1, encode(LaneData(b""))) + b"more"),
        lambda sock: sock.sendall(encode_frame(1, encode(LaneData(b"\0")))[:5]),
    ],
    ids=[
        "closes",
        "noise",
        "no message",
        "another count",
        "another answer",
        "half a payload",
        "less, and bytes behind it",
        "half a prefix",
    ],
)
def test_nonsense_fails_and_is_left(node: Callable[..., tuple[BadNode, TcpTransport]], serve: Serve) -> None:
    def bad_once(sock: socket.socket) -> None:
        read_frame(sock)
        serve(sock)

    bad, transport = node(bad_once, answer())
    assert read(transport) == Status.FAILED
    assert read(transport) == Status.OK
    assert bad.connections == 2


def test_an_answer_may_come_byte_by_byte(node: Callable[..., tuple[BadNode, TcpTransport]]) -> None:
    def trickle(sock: socket.socket) -> None:
        read_frame(sock)
        for byte in encode_frame(1, encode(LaneData(bytes([Status.OK])))) + b"p" * SIZE + header():
            sock.sendall(bytes([byte]))

    _, transport = node(trickle)
    memory = np.zeros(SIZE, dtype=np.uint8)
    assert read(transport, memory=memory) == Status.OK
    assert memory.tobytes() == b"p" * SIZE


def test_silence_costs_one_deadline(node: Callable[..., tuple[BadNode, TcpTransport]]) -> None:
    bad, transport = node(silent, answer())
    start_s = time.monotonic()
    assert read(transport, timeout_s=1.5) == Status.FAILED
    assert 1.4 < time.monotonic() - start_s < at_most(1.5)
    assert read(transport) == Status.OK
    assert bad.connections == 2


def test_one_lane_that_fails_leaves_the_others(node: Callable[..., tuple[BadNode, TcpTransport]]) -> None:
    """Two large objects go over two lanes; the first connection breaks."""
    size = 2 << 20

    def good(sock: socket.socket) -> None:
        read_frame(sock)
        frame = encode_frame(1, encode(LaneData(bytes([Status.OK]))))
        sock.sendall(frame + b"p" * size + header(length=size))
        sock.recv(1)

    def breaks(sock: socket.socket) -> None:
        read_frame(sock)

    _, transport = node(breaks, good, lanes=2)
    memory = np.zeros(2 * size, dtype=np.uint8)
    batch = batch_of([0, 1], scattered(memory, 2, 1, size))
    statuses = transport.read(batch, soon())
    assert sorted(statuses.tolist()) == [Status.OK, Status.FAILED]


def test_close_ends_a_read_under_way(node: Callable[..., tuple[BadNode, TcpTransport]]) -> None:
    bad, transport = node(silent)
    outcome: list[int] = []
    thread = threading.Thread(target=lambda: outcome.append(read(transport, timeout_s=60)))
    thread.start()
    wait_until(lambda: bad.connections)
    time.sleep(0.2)
    start_s = time.monotonic()
    transport.close()
    thread.join()
    assert time.monotonic() - start_s < at_most(0.2)
    assert outcome == [Status.FAILED]


BIG = 2 << 20
"""Two of them go over two lanes."""


def frame_of(*statuses: Status) -> bytes:
    return encode_frame(1, encode(LaneData(bytes(statuses))))


def sends(*parts: bytes, then: Callable[[], object] = lambda: None) -> Serve:
    """Answers one request, waits for the other side to end."""

    def serve(sock: socket.socket) -> None:
        read_frame(sock)
        for part in parts:
            sock.sendall(part)
        then()
        sock.recv(1)

    return serve


def read_big(transport: TcpTransport, memory: np.ndarray, timeout_s: float = 30.0) -> list[int]:
    batch = batch_of([0, 1], scattered(memory, 2, 1, BIG))
    statuses: list[int] = transport.read(batch, time.monotonic() + timeout_s).tolist()
    return statuses


def test_a_refusal_on_one_lane_leaves_the_other(node: Callable[..., tuple[BadNode, TcpTransport]]) -> None:
    refuses = sends(encode_frame(1, encode(Failed(-1, "no"))))
    good = sends(frame_of(Status.OK), b"p" * BIG, header(length=BIG))
    _, transport = node(refuses, good, lanes=2)
    memory = np.zeros(2 * BIG, dtype=np.uint8)
    assert sorted(read_big(transport, memory)) == [Status.OK, Status.FAILED]
    assert np.count_nonzero(memory == ord("p")) == BIG


def test_a_lane_that_stands_still_costs_its_share_alone_and_never_lands_late(
    node: Callable[..., tuple[BadNode, TcpTransport]],
) -> None:
    late = threading.Event()
    half = [frame_of(Status.OK), b"p" * (BIG // 2)]

    def stalls(sock: socket.socket) -> None:
        read_frame(sock)
        sock.sendall(b"".join(half))
        late.wait(60)
        sock.sendall(b"x" * (BIG // 2) + header(length=BIG))

    good = sends(frame_of(Status.OK), b"p" * BIG, header(length=BIG))
    _, transport = node(stalls, good, lanes=2)
    memory = np.zeros(2 * BIG, dtype=np.uint8)
    start_s = time.monotonic()
    assert sorted(read_big(transport, memory, timeout_s=1.5)) == [Status.OK, Status.FAILED]
    assert 1.4 < time.monotonic() - start_s < at_most(1.5)
    late.set()
    time.sleep(0.1)
    assert not (memory == ord("x")).any()


def test_lanes_that_all_died_idle_are_all_replaced(
    node: Callable[..., tuple[BadNode, TcpTransport]],
) -> None:
    def once(sock: socket.socket) -> None:
        read_frame(sock)
        sock.sendall(frame_of(Status.OK) + b"p" * BIG + header(length=BIG))

    bad, transport = node(once, lanes=2)
    for number in range(3):
        memory = np.zeros(2 * BIG, dtype=np.uint8)
        assert read_big(transport, memory) == [Status.OK] * 2, number
        assert (memory == ord("p")).all()
        time.sleep(0.05)
    assert bad.connections == 6


@pytest.mark.parametrize(
    "body",
    [
        b"\x92\xa8LaneData\xc5\x00\x02\x00\x01",
        b"\x93\xa8LaneData\xc4\x02\x00\x01\xc0",
        b"\x92\xd9\x08LaneData\xc4\x02\x00\x01",
    ],
    ids=["a wider length", "a field of tomorrow", "a longer tag"],
)
def test_an_answer_may_be_packed_otherwise(
    node: Callable[..., tuple[BadNode, TcpTransport]], body: bytes
) -> None:
    _, transport = node(sends(encode_frame(1, body), b"p" * SIZE + header()))
    memory = np.zeros(2 * SIZE, dtype=np.uint8)
    batch = batch_of([0, 1], scattered(memory, 2, 1, SIZE))
    assert transport.read(batch, soon()).tolist() == [Status.OK, Status.MISSING]
    assert memory.tobytes() == b"p" * SIZE + bytes(SIZE)


def test_only_what_is_said_to_come_is_taken(node: Callable[..., tuple[BadNode, TcpTransport]]) -> None:
    """Statuses of any value, payloads of those that are OK, and bytes behind them that nobody asked for."""
    statuses = bytes([200, Status.OK, Status.MISSING, Status.OK, 255])
    frame = encode_frame(1, encode(LaneData(statuses)))
    payload = b"a" * SIZE + b"b" * SIZE + header() * 2
    bad, transport = node(sends(frame, payload + b"more"), sends(frame, payload))
    for number in range(2):
        memory = np.zeros(5 * SIZE, dtype=np.uint8)
        batch = batch_of(range(5), scattered(memory, 5, 2, SIZE // 2))
        assert transport.read(batch, soon()).tolist() == list(statuses), number
        halves = [
            bytes(SIZE // 2),
            b"a" * (SIZE // 2),
            bytes(SIZE // 2),
            b"b" * (SIZE // 2),
            bytes(SIZE // 2),
        ]
        assert memory.tobytes() == b"".join(halves) * 2
    assert bad.connections == 2, "a lane with bytes that nobody asked for is left"


@pytest.mark.parametrize("cut", [3, 30, 40, 40 + BIG // 2, 40 + BIG + 5])
def test_a_peer_that_dies_in_the_middle_costs_its_share(
    node: Callable[..., tuple[BadNode, TcpTransport]], cut: int
) -> None:
    whole = frame_of(Status.OK) + b"p" * BIG + header(length=BIG)

    def dies(sock: socket.socket) -> None:
        read_frame(sock)
        sock.sendall(whole[:cut])

    bad, transport = node(dies, sends(whole), sends(whole), lanes=2)
    memory = np.zeros(2 * BIG, dtype=np.uint8)
    assert sorted(read_big(transport, memory)) == [Status.OK, Status.FAILED]
    assert bad.connections == 2


def test_busy_lanes_do_not_hold_up_those_that_are_free(
    node: Callable[..., tuple[BadNode, TcpTransport]],
) -> None:
    """Another call has one of two lanes: what would go over two goes over the other one, share by share."""
    waits = threading.Event()

    def slow(sock: socket.socket) -> None:
        read_frame(sock)
        waits.wait(60)
        sock.sendall(frame_of(Status.OK) + b"p" * SIZE + header())
        sock.recv(1)

    def good(sock: socket.socket) -> None:
        while True:
            read_frame(sock)
            sock.sendall(frame_of(Status.OK) + b"p" * BIG + header(length=BIG))

    bad, transport = node(slow, good, lanes=2)
    outcome: list[int] = []
    other = threading.Thread(target=lambda: outcome.append(read(transport, timeout_s=60)))
    other.start()
    wait_until(lambda: bad.connections)
    memory = np.zeros(2 * BIG, dtype=np.uint8)
    assert read_big(transport, memory) == [Status.OK] * 2
    waits.set()
    other.join()
    assert outcome == [Status.OK]
