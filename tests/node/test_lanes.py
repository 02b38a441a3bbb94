"""The data port: good exchanges, and every kind of bad peer."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lane_peer import HELLO, LanePeer
from support.node_sink import IndexSink

from moonpool.schemas.errors import (
    CODES,
    KeyspaceUnknown,
    Overloaded,
    ProtocolError,
    TooLarge,
    VersionMismatch,
)
from moonpool.schemas.framing import encode_frame
from moonpool.schemas.header import HEADER_DTYPE, SlotState, holds, keyspace_word
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace
from moonpool.schemas.messages import (
    BeginItem,
    DropList,
    Failed,
    Granted,
    Hello,
    KeyspaceRegistered,
    LaneRead,
    LaneWrite,
    Message,
    RegisterKeyspace,
    Status,
    Welcome,
    encode,
)
from moonpool.schemas.packed import pack_u64, u32s, u64s
from moonpool.store_client.node import lane
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.lane import LaneHooks
from moonpool.store_client.node.lanes import LaneServer
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory

SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="model", shard_bytes=(40_000,))
OBJECTS = objects_keyspace()
PAGE = 1 << 20


class Served:
    """A lane server over plain memory."""

    def __init__(self, lanes_max: int = 8) -> None:
        self.core = NodeCore(HeapMemory(Layout(PAGE, 8)), IndexSink())
        self.seen: list[int] = []
        hooks = LaneHooks(self._begin, self.core.register, self._visible, 0.05, itertools.count(1))
        self.server = LaneServer(self.core, hooks, lanes_max)
        self.port = self.server.start("127.0.0.1", 0)

    def _begin(self, put_id: int, item: BeginItem) -> Granted:
        with self.core.lock:
            granted = self.core.lane_begin(put_id, item, partial=True)
        assert isinstance(granted, Granted)
        return granted

    def _visible(self, serial: int) -> Future[None]:
        self.seen.append(serial)
        future: Future[None] = Future()
        if len(self.seen) == 1:
            future.set_result(None)
        return future

    def wait_idle(self) -> None:
        """Until every lane has ended and nothing is WRITING."""
        end_s = time.monotonic() + 5
        while self.server.facts()["lanes"] or self.core.slots.writing.any():
            assert time.monotonic() < end_s
            time.sleep(0.005)
        self.core.validate()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.close()
    made.core.validate()
    assert not made.core.slots.writing.any()


def chain(count: int, seed: int = 0) -> tuple[BeginItem, bytes, np.ndarray]:
    """(item, payload, hashes as S32) of new blocks."""
    rng = np.random.default_rng(seed)
    hashes = rng.bytes(32 * count)
    item = BeginItem(SPEC.digest(), 0, 0, b"", hashes, pack_u64([40_000] * count))
    return item, rng.bytes(40_000 * count), np.frombuffer(hashes, dtype="S32")


def code(message: Message) -> type[Exception]:
    assert isinstance(message, Failed), message
    return CODES[message.code]


def test_what_was_written_is_read_with_its_proof(served: Served) -> None:
    served.core.register(SPEC)
    item, payload, hashes = chain(50)
    with LanePeer(served.port) as peer:
        granted = peer.write(item, payload)
        assert isinstance(granted, Granted)
        assert granted.put_id == 9 and granted.statuses == bytes(50)
        statuses, found, trailer = peer.read(granted.slots, granted.generations, [40_000] * 50)
    assert statuses == bytes(50)
    assert found == payload
    lengths = np.full(50, 40_000, dtype=np.uint64)
    generations = u64s(granted.generations)
    assert holds(trailer, generations, keyspace_word(item.keyspace), 0, hashes, lengths).all()


def test_places_that_hold_something_else_are_missing(served: Served) -> None:
    served.core.register(SPEC)
    item, payload, _ = chain(2)
    with LanePeer(served.port) as peer:
        granted = peer.write(item, payload)
        assert isinstance(granted, Granted)
        slots = np.concatenate([u32s(granted.slots), np.array([7, 1 << 31, 0xFFFFFFFF], dtype=np.uint32)])
        generations = np.concatenate([u64s(granted.generations), np.array([1, 1, 1], dtype=np.uint64)])
        generations[0] += np.uint64(1)
        statuses, found, _ = peer.read(slots.tobytes(), generations.tobytes(), [40_000] * 5)
        assert list(statuses) == [Status.MISSING, Status.OK, *[Status.MISSING] * 3]
        assert found == payload[40_000:]
        wrong_lengths = peer.read(granted.slots, granted.generations, [39_999, 1 << 63])
        assert list(wrong_lengths[0]) == [Status.MISSING] * 2


def test_the_trailer_is_taken_after_the_last_payload_byte(served: Served) -> None:
    """The reader stops in the middle of the payload; what is dropped meanwhile must not look valid."""
    served.core.register(SPEC)
    item, payload, hashes = chain(150)
    with LanePeer(served.port) as peer:
        granted = peer.write(item, payload)
    assert isinstance(granted, Granted)
    with LanePeer(served.port, receive_bytes=4096) as slow:
        slow.send(LaneRead(granted.slots, granted.generations, pack_u64([40_000] * 150)))
        slow.reply()
        time.sleep(0.2)
        drop = DropList(item.keyspace, b"", b"", granted.slots[-160:], granted.generations[-320:])
        with served.core.lock:
            assert served.core.drops.exact([drop]) > 0
        slow.take(150 * 40_000)
        trailer = np.frombuffer(slow.take(150 * 128), dtype=HEADER_DTYPE)
    lengths = np.full(150, 40_000, dtype=np.uint64)
    proven = holds(trailer, u64s(granted.generations), keyspace_word(item.keyspace), 0, hashes, lengths)
    assert proven[:110].all() and not proven[110:].any()


def test_refused_objects_are_drained_and_the_lane_lives_on(served: Served) -> None:
    served.core.register(OBJECTS)
    sizes = [100, 3 * PAGE, 5000, 0, PAGE]
    hashes = np.random.default_rng(1).bytes(16 * len(sizes))
    keys = [f"key {index}" for index in range(len(sizes))]
    item = BeginItem(OBJECTS.digest(), 0, 0, b"", hashes, pack_u64(sizes), keys)
    payloads = [os.urandom(size) for size in sizes]
    with LanePeer(served.port) as peer:
        granted = peer.write(item, b"".join(payloads))
        assert isinstance(granted, Granted)
        expected = [Status.OK, Status.TOO_LARGE, Status.OK, Status.OK, Status.TOO_LARGE]
        assert list(granted.statuses) == expected
        statuses, found, trailer = peer.read(granted.slots, granted.generations, sizes)
        assert found == payloads[0] + payloads[2] and list(trailer["key_bytes"]) == [5, 5, 5]
        assert [s == Status.OK for s in statuses] == [s == Status.OK for s in expected]
    slots = u32s(granted.slots)[:1]
    start = int(served.core.slots.layout.data_offsets(slots, 1024)[0])
    assert served.core.slots.data[start + 100 : start + 105].tobytes() == b"key 0"


def test_a_full_segment_takes_what_fits(served: Served) -> None:
    served.core.register(SPEC)
    item, payload, _ = chain(250)
    with LanePeer(served.port) as peer:
        granted = peer.write(item, payload)
        assert isinstance(granted, Granted)
        room = 8 * (PAGE // 40_960)
        assert list(granted.statuses) == [Status.OK] * room + [Status.NO_SPACE] * (250 - room)
        _, found, _ = peer.read(granted.slots[: 4 * room], granted.generations[: 8 * room], [40_000] * room)
        assert found == payload[: 40_000 * room]


def test_a_dropped_object_is_gone_when_its_last_byte_arrives(served: Served) -> None:
    served.core.register(SPEC)
    item, payload, _ = chain(1)
    with LanePeer(served.port) as peer:
        peer.send(LaneWrite(9, item))
        peer.sock.sendall(payload[:-1])
        while not served.core.slots.writing.any():
            time.sleep(0.001)
        with served.core.lock:
            assert served.core.drops.sweep(item.keyspace, None, 0) == 1
        peer.sock.sendall(payload[-1:])
        granted = peer.reply()
    assert isinstance(granted, Granted) and list(granted.statuses) == [Status.GONE]
    assert served.core.slots.allocator.used_bytes == 0


def test_an_unknown_keyspace_costs_one_repeat(served: Served) -> None:
    item, payload, _ = chain(3)
    with LanePeer(served.port) as peer:
        assert code(peer.write(item, payload)) is KeyspaceUnknown
        assert isinstance(peer.call(RegisterKeyspace(SPEC)), KeyspaceRegistered)
        assert isinstance(peer.write(item, payload), Granted)


def test_a_visible_write_waits_for_the_master_a_bounded_time(served: Served) -> None:
    served.core.register(SPEC)
    with LanePeer(served.port) as peer:
        item, payload, _ = chain(1, 1)
        assert isinstance(peer.write(item, payload, visible=True), Granted)
        item, payload, _ = chain(1, 2)
        started_s = time.monotonic()
        assert isinstance(peer.write(item, payload, visible=True), Failed)
        assert time.monotonic() - started_s < 2
    assert served.seen == [1, 2]


@pytest.mark.parametrize("cut", [0, 1, 20_000, 79_999])
def test_a_writer_that_vanishes_leaves_nothing(served: Served, cut: int) -> None:
    served.core.register(SPEC)
    item, payload, _ = chain(2)
    with LanePeer(served.port) as peer:
        peer.send(LaneWrite(9, item))
        peer.sock.sendall(payload[:cut])
    served.wait_idle()
    assert served.core.slots.allocator.used_bytes == 0
    assert served.core.slots.committed == 0


def test_a_writer_that_stands_still_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "STALL_S", 0.2)
    served.core.register(SPEC)
    item, payload, _ = chain(2)
    with LanePeer(served.port) as peer:
        peer.send(LaneWrite(9, item))
        peer.sock.sendall(payload[:1000])
        assert peer.is_closed()
    served.wait_idle()


def test_a_reader_that_stands_still_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "STALL_S", 0.2)
    served.core.register(SPEC)
    item, payload, _ = chain(190)
    with LanePeer(served.port) as writer:
        granted = writer.write(item, payload)
    assert isinstance(granted, Granted)
    with LanePeer(served.port, receive_bytes=4096) as peer:
        peer.send(LaneRead(granted.slots, granted.generations, pack_u64([40_000] * 190)))
        served.wait_idle()


def test_half_open_connections_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "HANDSHAKE_S", 0.2)
    with LanePeer(served.port, greet=False) as silent, LanePeer(served.port, greet=False) as dripping:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for byte in encode_frame(1, encode(HELLO))[:8]:
                dripping.sock.sendall(bytes([byte]))
                time.sleep(0.05)
        assert silent.is_closed() and dripping.is_closed()
    served.wait_idle()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", ProtocolError),
        (struct.pack("<II", 0xFFFFFFFF, 1), ProtocolError),
        (struct.pack("<II", 5000, 1), ProtocolError),
        (struct.pack("<II", 0, 1), ProtocolError),
        (encode_frame(1, b"\xc1\xc1"), ProtocolError),
        (encode_frame(1, encode(RegisterKeyspace(SPEC))), ProtocolError),
        (encode_frame(1, encode(Hello(99, "data", "test"))), VersionMismatch),
    ],
)
def test_a_bad_handshake_is_told_and_closed(served: Served, sent: bytes, error: type[Exception]) -> None:
    with LanePeer(served.port, greet=False) as peer:
        peer.sock.sendall(sent)
        assert code(peer.reply()) is error
        assert peer.is_closed()


def item_with(lengths: bytes, count: int = 1) -> BeginItem:
    return BeginItem(SPEC.digest(), 0, 0, b"", bytes(range(32)) * count, lengths)


@pytest.mark.parametrize(
    "sent",
    [
        encode(LaneWrite(1, item_with(pack_u64([1 << 34])))),
        encode(LaneWrite(1, item_with(pack_u64([(1 << 64) - 1, (1 << 64) - 1]), 2))),
        encode(LaneWrite(1, item_with(b"123"))),
        encode(LaneWrite(1, item_with(pack_u64([0] * 10_000), 10_000))),
        encode(LaneRead(b"1234", b"", b"")),
        encode(LaneRead(bytes(40_000), bytes(80_000), bytes(80_000))),
        encode(LaneRead(b"123", b"12345678", b"12345678")),
        encode(HELLO),
        b"\x93\xc1",
    ],
)
def test_a_bad_request_is_told_and_closed(served: Served, sent: bytes) -> None:
    served.core.register(SPEC)
    with LanePeer(served.port) as peer:
        peer.sock.sendall(encode_frame(3, sent))
        assert isinstance(peer.reply(), Failed)
        assert peer.is_closed()


def test_a_frame_of_4_gib_allocates_nothing(served: Served) -> None:
    with LanePeer(served.port) as peer:
        peer.sock.sendall(struct.pack("<II", 0xFFFFFFF0, 2) + bytes(1000))
        assert code(peer.reply()) is ProtocolError
        assert peer.is_closed()


def test_lengths_that_differ_from_the_keyspace_are_refused_after_their_payload(served: Served) -> None:
    served.core.register(SPEC)
    with LanePeer(served.port) as peer:
        answer = peer.write(item_with(pack_u64([100])), bytes(100))
        assert isinstance(answer, Failed) and "lengths" in answer.message
        item, payload, _ = chain(1)
        assert isinstance(peer.write(item, payload), Granted)


def test_more_lanes_than_allowed_are_refused_until_one_ends(served: Served) -> None:
    peers = [LanePeer(served.port) for _ in range(8)]
    with LanePeer(served.port, greet=False) as extra:
        assert code(extra.reply()) is Overloaded
        assert extra.is_closed()
    peers.pop().sock.close()
    end_s = time.monotonic() + 5
    while served.server.facts()["lanes"] == 8:
        assert time.monotonic() < end_s
    with LanePeer(served.port):
        assert served.server.facts()["lanes_refused"] == 1
    for peer in peers:
        peer.sock.close()


def test_close_ends_every_thread() -> None:
    served = Served()
    before = threading.active_count()
    served.core.register(SPEC)
    item, payload, _ = chain(1)
    with LanePeer(served.port) as idle, LanePeer(served.port) as busy:
        busy.send(LaneWrite(9, item))
        busy.sock.sendall(payload[:100])
        while not served.core.slots.writing.any():
            time.sleep(0.001)
        served.server.close()
        assert idle.is_closed() and busy.is_closed()
    assert threading.active_count() < before
    assert not served.core.slots.writing.any()


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    greet=st.booleans(),
    junk=st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=200).map(lambda body: encode_frame(1, body)),
        st.tuples(st.integers(0, 300), st.integers(0, 255)).map(lambda edit: mutated(*edit)),
    ),
)
def test_junk_ends_one_lane_only(greet: bool, junk: bytes) -> None:
    served = shared()
    with LanePeer(served.port, greet=greet) as peer:
        with contextlib.suppress(OSError):  # it may be closed by then
            peer.sock.sendall(junk)
            peer.sock.shutdown(socket.SHUT_WR)
        assert peer.is_closed()
    served.wait_idle()
    with LanePeer(served.port, greet=False) as peer:
        assert isinstance(peer.call(HELLO), Welcome)
    served.wait_idle()


def mutated(position: int, value: int) -> bytes:
    """A good write with one byte changed, and its payload."""
    item, payload, _ = chain(2)
    frame = bytearray(encode_frame(1, encode(LaneWrite(9, item))))
    frame[position % len(frame)] = value
    return bytes(frame) + payload


_shared: list[Served] = []


def shared() -> Served:
    if not _shared:
        _shared.append(Served())
        _shared[0].core.register(SPEC)
    return _shared[0]


def teardown_module() -> None:
    for served in _shared:
        served.server.close()
        states = served.core.slots.headers.words >> np.uint64(56)
        assert not (states == SlotState.WRITING).any()


def test_too_large_an_exchange_is_refused_by_name(served: Served) -> None:
    served.core.register(OBJECTS)
    item = BeginItem(OBJECTS.digest(), 0, 0, b"", bytes(32), pack_u64([1 << 32, (1 << 32) + 1]))
    with LanePeer(served.port) as peer:
        peer.send(LaneWrite(9, item))
        assert code(peer.reply()) is TooLarge
