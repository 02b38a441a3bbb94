"""The data port among good peers: exchanges, and what they prove."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from support.lane_peer import LanePeer
from support.lane_server import OBJECTS, PAGE, SPEC, Served, chain, code
from support.waiting import at_most, wait_until

from moonpool.schemas.errors import (
    KeyspaceUnknown,
    Unavailable,
)
from moonpool.schemas.framing import encode_frame
from moonpool.schemas.header import HEADER_DTYPE, holds, keyspace_word
from moonpool.schemas.messages import (
    BeginItem,
    DropList,
    Failed,
    Granted,
    KeyspaceRegistered,
    LaneData,
    LaneRead,
    LaneWrite,
    PutAnswer,
    RegisterKeyspace,
    Status,
    encode,
)
from moonpool.schemas.packed import pack_u64, u32s, u64s
from moonpool.store_client.node import lane


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


def test_a_lane_may_be_idle_for_several_pauses(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "STALL_S", 0.1)
    with LanePeer(served.port) as peer:
        time.sleep(0.35)
        nothing = peer.call(LaneRead(bytes(4), bytes(8), bytes(8)))
    assert nothing == LaneData(bytes([Status.MISSING]))


def test_a_request_may_come_byte_by_byte(served: Served) -> None:
    with LanePeer(served.port) as peer:
        for byte in encode_frame(1, encode(LaneRead(bytes(4), bytes(8), bytes(8)))):
            peer.sock.sendall(bytes([byte]))
        assert peer.reply() == LaneData(bytes([Status.MISSING]))


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
        wait_until(served.core.slots.writing.any)
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
        assert time.monotonic() - started_s < at_most(0.05)
    assert served.seen == [{0: 1}, {0: 2}]


def direct(served: Served, count: int = 2) -> Granted:
    """The answer to a direct put. The lane must be of use afterwards."""
    served.core.register(SPEC)
    item, payload, _ = chain(count)
    with LanePeer(served.port) as peer:
        peer.send(LaneWrite(9, item, True, True))
        peer.sock.sendall(payload)
        granted = peer.reply()
        assert isinstance(granted, Granted)
        peer.read(granted.slots, granted.generations, [40_000] * count)
    return granted


def test_a_direct_put_is_told_what_the_master_has_no_use_for(served: Served) -> None:
    generation = served.core.slots.next_generation
    served.outcome = {generation: PutAnswer.EXISTS, generation + 2: PutAnswer.BUSY}
    assert list(direct(served, 4).statuses) == [Status.EXISTS, Status.OK, Status.BUSY, Status.OK]


def test_a_direct_put_whose_stream_breaks_proves_nothing(served: Served) -> None:
    served.outcome = Unavailable(peer="the master", retry_in_s=0.0)
    assert list(direct(served).statuses) == [Status.FAILED] * 2


def test_a_direct_put_is_not_begun_while_the_master_does_not_know_all(served: Served) -> None:
    served.settled = False
    assert list(direct(served).statuses) == [Status.BUSY] * 2
    assert not served.seen and served.core.slots.committed == 0
