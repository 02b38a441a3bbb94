"""The Unix socket among bad writers: numbers that can't be, and sessions that are not theirs."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from msgspec.structs import replace
from support.lane_peer import LanePeer
from support.local_writer import BLOCK_BYTES, DIGEST, SPEC, LocalWriter, hashes_of
from support.processes import NodeProcess

from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown, ProtocolError
from moonpool.schemas.header import GENERATION_BITS, SlotState
from moonpool.schemas.messages import (
    Begin,
    BeginItem,
    Commit,
    Committed,
    Granted,
    LaneWrite,
    Message,
    PutAhead,
    RegisterKeyspace,
    Revoke,
    SessionHeartbeat,
    Status,
)
from moonpool.schemas.packed import pack_u64, u32s
from moonpool.store_client.node.ahead import SHARE
from moonpool.store_client.node.puts import LANES


def test_bad_writers_take_nothing_from_others() -> None:
    with (
        NodeProcess("127.0.0.1:9", size=16 << 20) as node,
        LocalWriter(node.info.unix_path, node.run_dir) as writer,
        LanePeer(int(node.info.data_address.rpartition(":")[2])) as lane,
    ):
        writer.call(RegisterKeyspace(SPEC))
        item = BeginItem(DIGEST, 0, 0, b"", hashes_of(1, 2), pack_u64([BLOCK_BYTES] * 2))

        lane.send(LaneWrite(9, item))
        lane.sock.sendall(bytes(BLOCK_BYTES))
        node.wait_for("objects_writing", 2)
        # While a lane fills its slots nobody else may end its put: they would get a second writer.
        everything = list(range(64))
        orders: list[Message] = [
            Revoke(LANES, everything),
            SessionHeartbeat(LANES, [], 1 << 60),
            Commit(LANES, everything),
            Begin(LANES, 77, [item]),
            PutAhead(LANES, 1, item),
        ]
        for order in orders:
            with pytest.raises(ProtocolError):
                writer.call(order)
        assert node.status()["objects_writing"] == 2
        lane.sock.sendall(bytes(BLOCK_BYTES))
        granted = lane.reply()
        assert isinstance(granted, Granted) and granted.statuses == bytes(2)

        used_bytes = node.status()["used_bytes"]
        with pytest.raises(InvalidParams, match="put_id"):
            writer.call(Begin(writer.session, -1, [item]))
        assert node.status()["used_bytes"] == used_bytes, "slots that nobody holds"
        answer = writer.call(Begin(writer.session, (1 << 64) - 1, [item]))
        assert isinstance(answer, Granted) and answer.statuses == bytes(2)


def test_slots_that_were_granted_ahead_are_their_writers_alone() -> None:
    with (
        NodeProcess("127.0.0.1:9", size=16 << 20) as node,
        LocalWriter(node.info.unix_path, node.run_dir) as writer,
        LocalWriter(node.info.unix_path, node.run_dir) as other,
    ):
        put = writer.begin(2)
        committed = writer.call(Commit(writer.session, [put.put_id], ahead=50))
        assert isinstance(committed, Committed) and committed.ahead is not None
        ahead = committed.ahead
        assert (ahead.put_id, ahead.statuses) == (50, bytes(2))
        assert not set(u32s(ahead.slots)) & set(u32s(put.slots))
        states = writer.headers(u32s(ahead.slots))["word"] >> GENERATION_BITS
        assert states.tolist() == [SlotState.WRITING] * 2, "a reader would take it"
        item = BeginItem(DIGEST, 0, 0, b"", hashes_of(9, 2))
        assert other.call(PutAhead(other.session, 50, item)) == Committed([bytes([Status.GONE]) * 2])
        wrong = [
            replace(item, hashes=hashes_of(9, 3)),  # more than there are
            replace(item, hashes=b""),
            replace(item, hashes=hashes_of(9, 2)[:-1]),
            replace(item, rank=1),
            replace(item, shard=1 << 20),
            replace(item, parent=b"short"),
            replace(item, lengths=pack_u64([BLOCK_BYTES, BLOCK_BYTES - 1])),
            replace(item, keys=["a", "b"]),
        ]
        for bad in wrong:
            with pytest.raises(InvalidParams):
                writer.call(PutAhead(writer.session, 50, bad))
        with pytest.raises(KeyspaceUnknown):
            writer.call(PutAhead(writer.session, 50, replace(item, keyspace=bytes(16))))
        assert node.status()["objects_writing"] == 2
        for _ in range(2):
            answer = writer.call(PutAhead(writer.session, 50, replace(item, hashes=hashes_of(9, 1))))
            assert answer == Committed([bytes(1)]), "the second slot is free again"
        assert (node.status()["objects_writing"], node.status()["objects"]) == (0, 3)
        # Without a name nothing can be committed, and a put that was begun has its names.
        begun = writer.begin(2)
        assert writer.call(PutAhead(writer.session, begun.put_id, item)) == Committed(
            [bytes([Status.GONE]) * 2]
        )
        put = writer.begin(2)
        writer.call(Commit(writer.session, [put.put_id], ahead=60))
        assert writer.commit(60) == bytes([Status.GONE]) * 2
        assert (node.status()["objects_writing"], node.status()["objects"]) == (0, 5)


def test_all_together_get_a_small_part_ahead() -> None:
    """Also where each got its share of the time when it came, and none gives anything back."""
    with ExitStack() as stack:
        node = stack.enter_context(NodeProcess("127.0.0.1:9", size=16 << 20))
        for _ in range(4):
            writer = stack.enter_context(LocalWriter(node.info.unix_path, node.run_dir))
            for number in range(6):
                put = writer.begin(5)
                writer.call(Commit(writer.session, [put.put_id], ahead=1000 + number))
        assert 0 < int(node.status()["objects_writing"]) <= (16 << 20) // SHARE // 20480


def test_nobody_gets_many_slots_ahead() -> None:
    """And nobody any where the node is short of space."""
    with (
        NodeProcess("127.0.0.1:9", size=16 << 20) as node,
        LocalWriter(node.info.unix_path, node.run_dir) as writer,
    ):
        share_slots = (16 << 20) // SHARE // 20480
        held = 0
        for number in range(8):
            put = writer.begin(5)
            committed = writer.call(Commit(writer.session, [put.put_id], ahead=1000 + number))
            assert isinstance(committed, Committed)
            held += 5 * (committed.ahead is not None)
        assert 0 < held <= share_slots and node.status()["objects_writing"] == held
        writer.call(SessionHeartbeat(writer.session, [], 2000))
        assert node.status()["objects_writing"] == 0
        put = writer.begin(1)
        used_bytes = node.status()["used_bytes"]
        assert writer.call(Commit(writer.session, [put.put_id], ahead=-1)) == Committed([bytes(1)])
        assert node.status()["used_bytes"] == used_bytes, "slots that nobody holds"
        while int(node.status()["used_bytes"]) + (1 << 17) < int(node.status()["high_watermark_bytes"]):
            writer.put(4)
        put = writer.begin(5)
        committed = writer.call(Commit(writer.session, [put.put_id], ahead=3000))
        assert isinstance(committed, Committed) and committed.ahead is None
