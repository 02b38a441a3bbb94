"""Reads by one exchange in C: the same request, and the same verdict on every answer, as LaneReads in Python."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transports.bad_node import SIZE, BadNode, header, info_of, read_frame
from transports.memory_transport import batch_of, scattered

from moonpool.schemas.framing import PROTOCOL_VERSION, encode_frame
from moonpool.schemas.header import SlotState, word_of
from moonpool.schemas.messages import Hello, LaneData, LaneRead, Status, encode
from moonpool.schemas.packed import pack_u32, pack_u64
from moonpool.store_client import native, native_lanes
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.tcp import TcpTransport

pytestmark = pytest.mark.skipif(not native.HOT, reason="built without a compiler")

HEADERS: list[dict[str, object]] = [
    {},
    {"word": word_of(SlotState.COMMITTED, 2)},
    {"word": word_of(SlotState.WRITING, 1)},
    {"keyspace": 5},
    {"rank": 1},
    {"block_hash": b"x" * 16},
    {"block_hash": bytes(16) + b"behind a shorter"},
    {"length": SIZE - 1},
    {"checksum": 12345},
    {"parent_hash": b"p", "position": 7, "session": 9},
]
Answer = list[tuple[int, dict[str, object]]]


class Pair:
    """One node that says what a test wants, read in C and in Python."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.answer: Answer = []
        self.node = BadNode(self._serve)
        hello = Hello(PROTOCOL_VERSION, "data", "test")
        self.sides: dict[bool, TcpTransport] = {}
        for hot in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(native, "HOT", hot)
                self.sides[hot] = TcpTransport(
                    info_of(self.node, door=False), hello, 1, lambda keyspace: None
                )

    def _serve(self, sock) -> None:  # type: ignore[no-untyped-def]
        while True:
            self.asked.append(read_frame(sock))
            sent = [
                (bytes([65 + i]) * SIZE, header(**of))
                for i, (status, of) in enumerate(self.answer)
                if not status
            ]
            frame = encode_frame(1, encode(LaneData(bytes(status for status, _ in self.answer))))
            sock.sendall(frame + b"".join(bytes_ for bytes_, _ in sent) + b"".join(said for _, said in sent))

    def read(self, answer: Answer, hash_bytes: int, verify: bool) -> list[tuple[list[int], bytes]]:
        self.answer = answer
        count = len(answer)
        found = []
        for transport in self.sides.values():
            memory = np.zeros(count * SIZE, dtype=np.uint8)
            batch = named(batch_of(range(count), scattered(memory, count, 2, SIZE // 2)), hash_bytes, verify)
            statuses = transport.read(batch, time.monotonic() + 30)
            found.append((statuses.tolist(), memory.tobytes()))
        return found

    def close(self) -> None:
        for transport in self.sides.values():
            transport.close()
        self.node.close()


def named(batch: ReadBatch, hash_bytes: int, verify: bool) -> ReadBatch:
    hashes = np.zeros(len(batch.slots), dtype=f"S{hash_bytes}")
    columns = (batch.slots, batch.generations, batch.lengths, batch.into, verify)
    return ReadBatch(batch.keyspace, batch.rank, hashes, *columns)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    answer=st.lists(
        st.tuples(st.sampled_from([0, 0, 0, Status.MISSING, Status.FAILED, 200]), st.sampled_from(HEADERS)),
        min_size=1,
        max_size=20,
    ),
    hash_bytes=st.sampled_from([16, 32]),
    verify=st.booleans(),
)
def test_every_answer_is_judged_alike(pair: Pair, answer: Answer, hash_bytes: int, verify: bool) -> None:
    one, other = pair.read(answer, hash_bytes, verify)
    assert one == other
    assert pair.asked[-1] == pair.asked[-2]


@pytest.mark.parametrize("count", [1, 31, 32, 255, 256, 300])
def test_requests_of_any_length_are_what_python_sends(pair: Pair, count: int) -> None:
    one, other = pair.read([(int(Status.MISSING), {})] * count, 32, True)
    assert one == other == ([Status.MISSING] * count, bytes(count * SIZE))
    slots, ones, lengths = pack_u32(range(count)), pack_u64([1] * count), pack_u64([SIZE] * count)
    assert pair.asked[-2:] == [encode(LaneRead(slots, ones, lengths))] * 2


@pytest.mark.parametrize(
    "field", ["slots", "generations", "lengths", "hashes", "offsets", "addresses", "sizes"]
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_sent(pair: Pair, field: str) -> None:
    batch = batch_of([0, 1], scattered(np.zeros(2 * SIZE, dtype=np.uint8), 2, 1, SIZE))
    into: Fragments = batch.into
    columns = {
        "slots": batch.slots,
        "generations": batch.generations,
        "lengths": batch.lengths,
        "hashes": batch.hashes,
        "offsets": into.offsets,
        "addresses": into.addresses,
        "sizes": into.sizes,
    }
    for spoilt in (columns[field][:1], columns[field][:0]):
        with pytest.raises(ValueError, match="don't fit"):
            native_lanes.read_lane(-1, False, b"", tuple({**columns, field: spoilt}.values()), b"", 0, 0.0)  # type: ignore[arg-type]
    longer = {**columns, "lengths": batch.lengths + np.uint64(1)}
    with pytest.raises(ValueError, match="don't fit"):
        native_lanes.read_lane(-1, False, b"", tuple(longer.values()), b"", 0, 0.0)  # type: ignore[arg-type]
