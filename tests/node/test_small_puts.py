"""Puts of small objects in one exchange: the node writes the bytes that the message brings."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.local_writer import LocalWriter
from support.processes import NodeProcess

from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import (
    SMALL_BYTES,
    Begin,
    BeginItem,
    Committed,
    Granted,
    Hello,
    Message,
    PutSmall,
    RegisterKeyspace,
    Status,
    decode_from_node,
)
from moonpool.schemas.packed import pack_u64
from moonpool.store_client.rpc.connection import RpcConnection

SPEC = objects_keyspace("default")
DIGEST = SPEC.digest()


def item_of(lengths: list[int]) -> BeginItem:
    """New objects of these sizes."""
    hashes = b"".join(secrets.token_bytes(16) for _ in lengths)
    keys = [f"key {number}" for number in range(len(lengths))]
    return BeginItem(DIGEST, 0, 0, b"", hashes, pack_u64(lengths), keys)


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with NodeProcess("127.0.0.1:9", size=16 << 20) as node:
        yield node


class Writer:
    """Of the node's own host, or of another."""

    def __init__(self, node: NodeProcess, door: str) -> None:
        address = {"unix": f"unix:{node.info.unix_path}", "tcp": node.info.rpc_address}[door]
        hello = Hello(PROTOCOL_VERSION, "client", "writer")
        self.connection = RpcConnection(address, hello, decode_from_node)
        self.counter = {"unix": "local_bytes", "tcp": "tcp_bytes_written"}[door]
        self.call(RegisterKeyspace(SPEC))

    def call(self, message: Message) -> Message:
        return self.connection.call(message, time.monotonic() + 10)

    def close(self) -> None:
        self.connection.close()


@pytest.fixture(params=["unix", "tcp"])
def writer(node: NodeProcess, request: pytest.FixtureRequest) -> Iterator[Writer]:
    made = Writer(node, request.param)
    yield made
    made.close()


def test_bytes_are_written_and_committed(node: NodeProcess, writer: Writer) -> None:
    before = node.status()
    lengths = [100, 0, 5000]
    answer = writer.call(PutSmall(item_of(lengths), secrets.token_bytes(sum(lengths))))
    assert answer == Committed([bytes([Status.OK] * 3)])
    after = node.status()
    assert after["objects"] == before["objects"] + 3
    moved = {name for name in ("local_bytes", "tcp_bytes_written") if after[name] != before[name]}
    assert moved == {writer.counter} and after[writer.counter] == before[writer.counter] + 5100
    assert after["objects_writing"] == 0


@pytest.mark.parametrize("size_bytes", [0, 99, 101, SMALL_BYTES + 1])
def test_a_payload_of_another_length_leaves_nothing_behind(
    node: NodeProcess, writer: Writer, size_bytes: int
) -> None:
    before = node.status()
    with pytest.raises(InvalidParams, match="payload"):
        writer.call(PutSmall(item_of([60, 40]), bytes(size_bytes)))
    after = node.status()
    for fact in ("objects", "objects_writing", "used_bytes"):
        assert after[fact] == before[fact], fact


def test_lengths_must_be_given_and_keyspaces_known(writer: Writer) -> None:
    with pytest.raises(InvalidParams, match="lengths"):
        writer.call(PutSmall(BeginItem(DIGEST, 0, 0, b"", bytes(16)), b"bytes"))
    with pytest.raises(KeyspaceUnknown):
        writer.call(PutSmall(BeginItem(b"k" * 16, 0, 0, b"", bytes(16), pack_u64([5])), b"bytes"))


@pytest.mark.parametrize("door", ["unix", "tcp"])
def test_where_there_is_no_room_the_put_waits_and_then_says_so(door: str) -> None:
    """Nobody can be asked for room here."""
    with NodeProcess("127.0.0.1:9", size=1 << 20) as node, closing(Writer(node, door)) as writer:
        statuses = b""
        for _ in range(20):
            answer = writer.call(PutSmall(item_of([60_000]), bytes(60_000)))
            assert isinstance(answer, Committed)
            statuses += answer.statuses[0]
        stored = statuses.count(Status.OK)
        assert 0 < stored < 20
        assert statuses == bytes([Status.OK] * stored + [Status.NO_SPACE] * (20 - stored))
        assert node.status()["objects"] == stored
        assert node.status()["objects_writing"] == 0


def test_direct_puts_are_busy_while_no_master_knows_what_there_is(node: NodeProcess, writer: Writer) -> None:
    before = node.status()
    item = item_of([100, 200])
    assert writer.call(PutSmall(item, bytes(300), direct=True)) == Committed([bytes([Status.BUSY] * 2)])
    with LocalWriter(node.info.unix_path, node.run_dir) as local:
        granted = local.call(Begin(local.session, 1, [item, item_of([5])], direct=True))
        assert granted == Granted(1, bytes([Status.BUSY] * 3), bytes(12), bytes(24))
    after = node.status()
    for fact in ("objects", "objects_writing", "used_bytes"):
        assert after[fact] == before[fact], fact
