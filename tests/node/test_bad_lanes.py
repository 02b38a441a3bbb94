"""The data port among bad peers: vanishing, standing still, lying, talking junk."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lane_peer import HELLO, LanePeer
from support.lane_server import OBJECTS, SPEC, Served, chain, code
from support.waiting import wait_until

from moonpool.schemas.errors import (
    Overloaded,
    ProtocolError,
    TooLarge,
    VersionMismatch,
)
from moonpool.schemas.framing import encode_frame
from moonpool.schemas.header import SlotState
from moonpool.schemas.messages import (
    BeginItem,
    Failed,
    Granted,
    Hello,
    LaneRead,
    LaneWrite,
    RegisterKeyspace,
    Welcome,
    encode,
)
from moonpool.schemas.packed import pack_u64
from moonpool.store_client.node import lane


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


def wait_until_idle(served: Served, lanes: int) -> None:
    """Until so many lanes wait for a request."""
    wait_until(lambda: sum(known.idle_since_s is not None for known in list(served.server._lanes)) == lanes)


def test_more_lanes_than_allowed_are_refused_until_one_ends(served: Served) -> None:
    peers = [LanePeer(served.port) for _ in range(8)]
    for peer in peers:
        peer.sock.sendall(bytes([7]))  # a request has begun: none of them is idle
    wait_until_idle(served, 0)
    with LanePeer(served.port, greet=False) as extra:
        assert code(extra.reply()) is Overloaded
        assert extra.is_closed()
    peers.pop().sock.close()
    wait_until(lambda: served.server.facts()["lanes"] < 8)
    with LanePeer(served.port):
        assert served.server.facts()["lanes_refused"] == 1
        assert served.server.facts()["lanes_retired"] == 0
    for peer in peers:
        peer.sock.close()


def test_where_all_lanes_are_taken_the_longest_idle_one_makes_room(served: Served) -> None:
    """Clients keep their lanes: more of them than there are lanes would otherwise lock each other out."""
    served.core.register(SPEC)
    item, payload, _ = chain(1)
    with contextlib.ExitStack() as stack:
        lanes: list[LanePeer] = []
        for number in range(8):
            lanes.append(stack.enter_context(LanePeer(served.port)))
            wait_until_idle(served, number + 1)  # one after the other: their order counts
        writer, *peers = lanes
        writer.send(LaneWrite(9, item))
        writer.sock.sendall(payload[:-1])
        wait_until_idle(served, 7)
        peers[0].write(*chain(1, 2)[:2])  # not the one that was idle longest any more
        wait_until_idle(served, 7)
        newcomers = [stack.enter_context(LanePeer(served.port)) for _ in range(2)]
        assert peers[1].is_closed() and peers[2].is_closed()
        writer.sock.sendall(payload[-1:])
        assert isinstance(writer.reply(), Granted), "the oldest of all, and in use"
        for number, peer in enumerate([peers[0], *peers[3:], *newcomers]):
            assert isinstance(peer.write(*chain(1, 3 + number)[:2]), Granted)
        facts = served.server.facts()
        assert (facts["lanes"], facts["lanes_retired"], facts["lanes_refused"]) == (8, 2, 0)


def test_close_ends_every_thread() -> None:
    served = Served()
    before = threading.active_count()
    served.core.register(SPEC)
    item, payload, _ = chain(1)
    with LanePeer(served.port) as idle, LanePeer(served.port) as busy:
        busy.send(LaneWrite(9, item))
        busy.sock.sendall(payload[:100])
        wait_until(served.core.slots.writing.any)
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
