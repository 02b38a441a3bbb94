"""Reads of small objects in one answer of the event loop: bytes with the headers that prove them, and what is refused."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from support.lane_peer import LanePeer
from support.local_writer import LocalWriter
from support.processes import NodeProcess

from moonpool.schemas.errors import InvalidParams, ProtocolError
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.header import HEADER_BYTES, HEADER_DTYPE, holds, keyspace_word
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import (
    SMALL_BYTES,
    SMALL_OBJECTS,
    Begin,
    BeginItem,
    GetSmall,
    Granted,
    Hello,
    Message,
    RegisterKeyspace,
    Revoke,
    SmallData,
    Status,
    decode_from_node,
)
from moonpool.schemas.packed import pack_u64, u32s, u64s
from moonpool.store_client.rpc.connection import RpcConnection

SPEC = objects_keyspace("default")
SIZES = [100, 0, 5000, 4096]


def item_of(hashes: bytes) -> BeginItem:
    keys = [f"key {number}" for number in range(len(SIZES))]
    return BeginItem(SPEC.digest(), 0, 0, b"", hashes, pack_u64(SIZES), keys)


class Stored:
    """A node that holds some objects, and a reader of another host."""

    def __init__(self, node: NodeProcess, writer: LocalWriter) -> None:
        self.node, self.writer = node, writer
        hello = Hello(PROTOCOL_VERSION, "client", "reader")
        self.reader = RpcConnection(node.info.rpc_address, hello, decode_from_node)
        self.hashes = secrets.token_bytes(16 * len(SIZES))
        self.payloads = [secrets.token_bytes(size) for size in SIZES]
        with LanePeer(int(node.info.data_address.rpartition(":")[2])) as peer:
            granted = peer.write(item_of(self.hashes), b"".join(self.payloads))
        assert isinstance(granted, Granted)
        self.granted = granted
        self.request = GetSmall(self.granted.slots, self.granted.generations, pack_u64(SIZES))

    def begin(self, hashes: bytes) -> Granted:
        self.writer.puts += 1
        granted = self.writer.call(Begin(self.writer.session, self.writer.puts, [item_of(hashes)]))
        assert isinstance(granted, Granted)
        return granted

    def ask(self, request: Message) -> SmallData:
        answer = self.reader.call(request, time.monotonic() + 10)
        assert isinstance(answer, SmallData)
        return answer


@pytest.fixture(scope="module")
def stored() -> Iterator[Stored]:
    with (
        NodeProcess("127.0.0.1:9", size=16 << 20) as node,
        LocalWriter(node.info.unix_path, node.run_dir) as writer,
    ):
        writer.call(RegisterKeyspace(SPEC))
        found = Stored(node, writer)
        yield found
        found.reader.close()


def test_bytes_come_with_their_proof(stored: Stored) -> None:
    answer = stored.ask(stored.request)
    assert answer.statuses == bytes(len(SIZES))
    assert answer.payload == b"".join(stored.payloads)
    headers = np.frombuffer(answer.headers, dtype=HEADER_DTYPE)
    hashes = np.array([stored.hashes[at : at + 16] for at in range(0, len(stored.hashes), 16)], dtype="S32")
    generations, lengths = u64s(stored.granted.generations), np.array(SIZES, dtype=np.uint64)
    assert holds(headers, generations, keyspace_word(SPEC.digest()), 0, hashes, lengths).all()


def test_places_that_hold_something_else_are_missing_and_bring_no_byte(stored: Stored) -> None:
    slots = u32s(stored.granted.slots).tolist()
    generations = u64s(stored.granted.generations).tolist()
    strange = [
        (slots[0], generations[0] + 1, SIZES[0]),
        (slots[0], generations[0] | 1 << 56, SIZES[0]),  # bits of the state
        (slots[0], generations[0], SIZES[0] - 1),
        (slots[0], generations[0], SMALL_BYTES // 2),  # longer than any slot of its page
        (slots[0] + 1000, 0, 0),
        (5 << 16, 0, 0),  # a page that has no slots yet
        (1 << 31, 1, 10),
        (0xFFFFFFFF, 0, 0),
        (slots[2], generations[2], SIZES[2]),
    ]
    columns = list(zip(*strange, strict=True))
    packed = np.array(columns[0], dtype="<u4").tobytes()
    answer = stored.ask(GetSmall(packed, pack_u64(columns[1]), pack_u64(columns[2])))
    assert list(answer.statuses) == [Status.MISSING] * 8 + [Status.OK]
    assert answer.payload == stored.payloads[2] and len(answer.headers) == HEADER_BYTES


def test_what_is_not_committed_is_missing(stored: Stored) -> None:
    granted = stored.begin(secrets.token_bytes(16 * len(SIZES)))
    answer = stored.ask(GetSmall(granted.slots, granted.generations, pack_u64(SIZES)))
    assert answer == SmallData(bytes([Status.MISSING] * len(SIZES)), b"", b"")
    stored.writer.call(Revoke(stored.writer.session, [granted.put_id]))
    answer = stored.ask(GetSmall(granted.slots, granted.generations, pack_u64(SIZES)))
    assert answer == SmallData(bytes([Status.MISSING] * len(SIZES)), b"", b"")


@pytest.mark.parametrize(
    ("field", "columns"),
    [
        ("get.slots", (b"123", bytes(8), bytes(8))),
        ("get.slots", (bytes(8), bytes(8), bytes(16))),
        ("get.slots", (bytes(8), bytes(16), bytes(8))),
        ("get.slots", (bytes(4), bytes(9), bytes(8))),
        ("get.slots", (bytes(4 * (SMALL_OBJECTS + 1)), *[bytes(8 * (SMALL_OBJECTS + 1))] * 2)),
        ("get.lengths", (bytes(4), bytes(8), pack_u64([SMALL_BYTES + 1]))),
        ("get.lengths", (bytes(8), bytes(16), pack_u64([SMALL_BYTES, 1]))),
        ("get.lengths", (bytes(8), bytes(16), pack_u64([1 << 63, 1 << 63]))),  # a sum that wraps around to 0
    ],
)
def test_columns_that_cannot_be_served_are_refused(
    stored: Stored, field: str, columns: tuple[bytes, bytes, bytes]
) -> None:
    with pytest.raises(InvalidParams, match=field):
        stored.ask(GetSmall(*columns))
    assert stored.ask(stored.request).statuses == bytes(len(SIZES)), "and the connection lives on"


def test_a_request_cut_short_ends_its_connection_alone(stored: Stored) -> None:
    class Half(msgspec.Struct, tag="GetSmall", array_like=True):
        slots: bytes

    hello = Hello(PROTOCOL_VERSION, "client", "stranger")
    stranger = RpcConnection(stored.node.info.rpc_address, hello, decode_from_node)
    with pytest.raises((InvalidParams, ProtocolError)):
        stranger.call(Half(b""), time.monotonic() + 10)  # type: ignore[arg-type]
    stranger.close()
    assert stored.ask(stored.request).statuses == bytes(len(SIZES))
