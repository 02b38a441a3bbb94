"""Reads that lanes serve in C: the same answers as in Python, and whose turn it is where a lane is wanted away."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node.conftest import needs_c
from support.lane_peer import HELLO, LanePeer
from support.lane_server import SPEC, Served, chain
from support.waiting import wait_until

from moonpool.schemas.framing import PREFIX, encode_frame
from moonpool.schemas.messages import Granted, LaneData, LaneRead, Status, Welcome, encode
from moonpool.schemas.packed import pack_u32, pack_u64, u32s, u64s
from moonpool.store_client import native
from moonpool.store_client.node.lane_turn import Turn

BLOCKS = 4
BYTES = 40_000
PEER = re.compile(rb"127\.0\.0\.1:\d+")
"""Whom a refusal is told to."""
pytestmark = needs_c


class Pair:
    """The same blocks behind lanes in C and in Python."""

    def __init__(self) -> None:
        self.servers: list[Served] = []
        for hot in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(native, "HOT", hot)
                served = Served()
                served.core.register(SPEC)
                self.servers.append(served)
                item, payload, _ = chain(BLOCKS)
                with LanePeer(served.port) as peer:
                    granted = peer.write(item, payload)
                assert isinstance(granted, Granted)
                self.granted = granted

    def differ(self, sent: bytes) -> bool:
        """Whether what comes back up to the end of the connection isn't the same from both. A reset, by a lane that ends
        with bytes that it hasn't read, may swallow the end of it."""
        (one, one_reset), (other, other_reset) = self.answers(sent)
        if one_reset or other_reset:
            return not (one.startswith(other) or other.startswith(one))
        return one != other

    def answers(self, sent: bytes) -> list[tuple[bytes, bool]]:
        """From each: what comes, and whether a reset ends it."""
        found = []
        for hot, served in zip((True, False), self.servers, strict=True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(native, "HOT", hot)
                came, reset = bytearray(), False
                with LanePeer(served.port) as peer:
                    try:
                        peer.sock.sendall(sent)
                        peer.sock.shutdown(socket.SHUT_WR)
                        while part := peer.sock.recv(1 << 20):
                            came += part
                    except OSError:
                        reset = True
                found.append((PEER.sub(b"peer", came), reset))
        return found


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    for served in made.servers:
        served.wait_idle()
        served.server.close()


def request(granted: Granted) -> bytes:
    """A read of all blocks, and of one that isn't there."""
    slots = granted.slots + u32s(granted.slots)[-1:].tobytes()
    generations = granted.generations + pack_u64([77])
    return encode_frame(7, encode(LaneRead(slots, generations, pack_u64([BYTES] * (BLOCKS + 1)))))


def test_a_read_is_answered_alike(pair: Pair) -> None:
    one, other = pair.answers(request(pair.granted) * 2)
    assert len(one[0]) > 2 * BLOCKS * BYTES
    assert one == other


@pytest.mark.parametrize("wanted", [[0], [3, 1], [2, 2, 2, 2, 2], [], [9], [9, 0], [0, 9]], ids=str)
def test_few_blocks_and_many_are_answered_alike(pair: Pair, wanted: list[int]) -> None:
    """One is small enough to be copied and sent by one call; 9: one that isn't there."""
    slots, generations = u32s(pair.granted.slots), u64s(pair.granted.generations)
    there = [number % BLOCKS for number in wanted]
    body = LaneRead(
        pack_u32(slots[there]),
        pack_u64([77 if number == 9 else int(generations[number]) for number in wanted]),
        pack_u64([BYTES] * len(wanted)),
    )
    one, other = pair.answers(encode_frame(7, encode(body)) * 3)
    assert one == other
    assert len(one[0]) // (BYTES + 128) == 3 * sum(number != 9 for number in wanted)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(at=st.integers(0, 150), value=st.integers(0, 255), length=st.one_of(st.none(), st.integers(0, 150)))
def test_a_spoilt_read_is_answered_alike(pair: Pair, at: int, value: int, length: int | None) -> None:
    frame = bytearray(request(pair.granted))
    frame[at % len(frame)] = value
    assert not pair.differ(bytes(frame[:length]))
    assert not pair.differ(bytes(frame[:length]) + request(pair.granted))


@pytest.mark.parametrize(
    "body",
    [
        encode(LaneRead(b"", b"", b"")),
        encode(LaneRead(bytes(4), bytes(8), b"\xff" * 8)),
        encode(LaneRead(b"\xff" * 4, b"\xff" * 8, bytes(8))),
        encode(LaneRead(bytes(4), bytes(8), bytes(16))),
        encode(LaneRead(bytes(4 * 1024), bytes(8 * 1024), bytes(8 * 1024))),
        encode(LaneRead(bytes(4 * 1025), bytes(8 * 1025), bytes(8 * 1025))),
        encode(LaneRead(bytes(4), bytes(8), bytes(8))) + b"\xc0",
        b"\x95" + encode(LaneRead(bytes(4), bytes(8), bytes(8)))[1:] + b"\xc0",
        b"\x94\xa8LaneRead\xc6\x00\x00\x00\x04\x00\x00\x00\x00\xc5\x00\x08"
        + bytes(8)
        + b"\xc4\x08"
        + bytes(8),
        b"\x94\xa8LaneRead\xc6\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x94\xa8LaneRead",
    ],
)
def test_an_odd_read_is_answered_alike(pair: Pair, body: bytes) -> None:
    assert not pair.differ(encode_frame(3, body))
    assert not pair.differ(encode_frame(3, body) + request(pair.granted))


def test_a_long_request_may_come_in_pieces(pair: Pair) -> None:
    count = 1000
    slots = np.resize(u32s(pair.granted.slots), count).tobytes()
    generations = np.resize(u64s(pair.granted.generations), count).tobytes()
    frame = encode_frame(7, encode(LaneRead(slots, generations, pack_u64([0] * count))))
    with LanePeer(pair.servers[0].port) as peer:
        for first in range(0, len(frame), 5000):
            peer.sock.sendall(frame[first : first + 5000])
            threading.Event().wait(0.02)
        reply = peer.reply()
    assert reply.statuses == bytes([Status.MISSING]) * count  # type: ignore[attr-defined]


@pytest.mark.parametrize("hot", [True, False], ids=["c", "python"])
def test_a_lane_begins_or_is_retired_but_never_both(monkeypatch: pytest.MonkeyPatch, hot: bool) -> None:
    monkeypatch.setattr(native, "HOT", hot)
    turn = Turn()
    assert turn.begin() and not turn.retire(), "a busy lane stays"
    turn.rest()
    assert turn.idle_since_s is not None
    assert turn.retire() and not turn.begin() and not turn.retire()
    assert turn.idle_since_s is None
    for _ in range(300):
        turn = Turn()
        turn.rest()
        go = threading.Barrier(2)
        retired: list[bool] = []
        other = threading.Thread(target=lambda: (go.wait(), retired.append(turn.retire())))  # noqa: B023
        other.start()
        go.wait()
        begun = turn.begin()
        other.join()
        assert [begun] != retired


def test_readers_that_push_each_other_out_get_whole_answers_or_none() -> None:
    """Eight readers and three lanes: whose lane was retired with a request on its way hears nothing at all of it."""
    served = Served(lanes_max=3)
    served.core.register(SPEC)
    item, payload, _ = chain(BLOCKS)
    with LanePeer(served.port) as writer:
        granted = writer.write(item, payload)
    assert isinstance(granted, Granted)
    whole: list[bool] = []
    wrong: list[bytes] = []

    answer_bytes = PREFIX.size + len(encode(LaneData(bytes(BLOCKS + 1)))) + BLOCKS * (BYTES + 128)

    def reader() -> None:
        for _ in range(12):
            with contextlib.suppress(EOFError, OSError), LanePeer(served.port, greet=False) as peer:
                if not isinstance(peer.call(HELLO), Welcome):
                    continue
                for _ in range(3):
                    peer.sock.sendall(request(granted))
                    if first := peer.sock.recv(1):
                        try:
                            whole.append(payload in first + peer.take(answer_bytes - 1))
                        except EOFError:
                            wrong.append(first)

    threads = [threading.Thread(target=reader) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served.wait_idle()
    served.server.close()
    assert any(whole) and all(whole) and not wrong


def test_what_was_read_is_counted() -> None:
    served = Served()
    served.core.register(SPEC)
    item, payload, _ = chain(BLOCKS)
    with LanePeer(served.port) as peer:
        granted = peer.write(item, payload)
        assert isinstance(granted, Granted)
        for _ in range(3):
            peer.read(granted.slots, granted.generations, [BYTES] * BLOCKS)
        wait_until(lambda: served.server.facts()["lane_bytes_read"] == 3 * BLOCKS * BYTES)
    served.wait_idle()
    assert served.server.facts()["lane_bytes_read"] == 3 * BLOCKS * BYTES
    served.server.close()
