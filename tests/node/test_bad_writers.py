"""The Unix socket among bad writers: numbers that can't be, and sessions that are not theirs."""

from __future__ import annotations

import pytest
from support.lane_peer import LanePeer
from support.local_writer import BLOCK_BYTES, DIGEST, SPEC, LocalWriter, hashes_of
from support.processes import NodeProcess

from moonpool.schemas.errors import InvalidParams, ProtocolError
from moonpool.schemas.messages import (
    Begin,
    BeginItem,
    Commit,
    Granted,
    LaneWrite,
    Message,
    RegisterKeyspace,
    Revoke,
    SessionHeartbeat,
)
from moonpool.schemas.packed import pack_u64
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
