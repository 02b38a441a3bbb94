"""Objects stored in one step leave what Begin, fill and Commit would have left."""

from __future__ import annotations

import numpy as np
import pytest
from support.node_sink import IndexSink

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import HEADER_BYTES, HEADER_DTYPE
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace
from moonpool.schemas.messages import Begin, BeginItem, Granted, Status, View
from moonpool.schemas.packed import pack_u64
from moonpool.store_client import native
from moonpool.store_client.node.core import NodeCore, Shortage
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.puts import LANES
from moonpool.store_client.node.whole_puts import FEW

OBJECTS = objects_keyspace()
STATES = KeyspaceSpec(kind=Kind.FLAT, name="state", shard_bytes=(3000, 700), hash_bytes=16)
PAGE = 64 << 10
needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")


@pytest.fixture(autouse=True, params=[pytest.param(True, marks=needs_c), False], ids=["c", "python"])
def hot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "HOT", request.param)


class SummingSink(IndexSink):
    """Keeps checksums."""

    def checksum(self, payload: View) -> int:
        return 1 + sum(payload)


def new_core(pages: int = 4) -> NodeCore:
    core = NodeCore(HeapMemory(Layout(PAGE, pages)), SummingSink())
    for spec in (OBJECTS, STATES):
        core.register(spec)
    return core


def item_of(spec: KeyspaceSpec, lengths: list[int], rank: int = 0) -> BeginItem:
    hashes = b"".join(bytes([i + 1]) * 14 + b"\0\0" for i in range(len(lengths)))
    keys = [f"k\u00e9y {i}" for i in range(len(lengths))] if spec.variable_size else []
    return BeginItem(spec.digest(), rank, 0, b"", hashes, pack_u64(lengths), keys, shard=3)


@pytest.mark.parametrize(
    ("spec", "lengths", "rank"),
    [(OBJECTS, [5], 0), (OBJECTS, [0, 900, PAGE + 1, 1, 5000], 0), (STATES, [700, 700], 1)],
)
def test_the_same_headers_bytes_and_reports(spec: KeyspaceSpec, lengths: list[int], rank: int) -> None:
    item = item_of(spec, lengths, rank)
    payload = np.random.default_rng(0).bytes(sum(lengths))
    at_once, in_steps = new_core(), new_core()
    statuses = at_once.store(7, item, payload)
    granted = in_steps.begin(LANES, Begin(LANES, 7, [item]), partial=False)
    assert isinstance(granted, Granted)
    assert in_steps.finish(granted, item, payload) == statuses
    ours, theirs = at_once.slots.sink, in_steps.slots.sink
    assert isinstance(ours, SummingSink) and isinstance(theirs, SummingSink)
    assert ours.ops == theirs.ops and ours.index == theirs.index
    assert at_once.reported == in_steps.reported
    assert at_once.counters == in_steps.counters
    start, end = at_once.head.layout.data_offset, at_once.head.layout.file_bytes
    assert (at_once.slots.data[start:end] == in_steps.slots.data[start:end]).all()
    for slot in ours.index:
        mine, other = (header_of(core, slot) for core in (at_once, in_steps))
        length = int(mine["length"][0])
        first = at_once.slots.data_offset(slot, int(at_once.slots.allocator.slot_bytes[slot >> 16]))
        assert mine["checksum"][0] == 1 + int(at_once.slots.data[first : first + length].sum())
        for field in ("checksum", "session", "put_id"):  # of no use once it is committed
            mine[field] = other[field] = 0
        assert mine.tobytes() == other.tobytes()
    at_once.validate()


def header_of(core: NodeCore, slot: int) -> np.ndarray:  # type: ignore[type-arg]
    at = core.slots.header_offset(slot)
    return core.slots.data[at : at + HEADER_BYTES].copy().view(HEADER_DTYPE)


@pytest.mark.parametrize("lengths", [[30000] * 12, [100] * 5 + [60000] * 5])
def test_a_shortage_leaves_nothing_behind(lengths: list[int]) -> None:
    core = new_core()
    before = core.slots.allocator.free_bytes
    assert isinstance(core.store(1, item_of(OBJECTS, lengths), bytes(sum(lengths))), Shortage)
    assert core.slots.allocator.free_bytes == before and core.slots.committed == 0
    core.validate()
    assert core.store(2, item_of(OBJECTS, [30000]), bytes(30000)) == bytes([Status.OK])


@pytest.mark.parametrize("count", [1, FEW, FEW + 1])
@pytest.mark.parametrize("spec", [OBJECTS, STATES])
def test_lengths_and_payload_must_agree(spec: KeyspaceSpec, count: int) -> None:
    core = new_core()
    good = item_of(spec, [3000] * count)
    for bad in ([2999] * count, [3000] * (count - 1) + [3001], [3000] * (count + 1)):
        wrong = BeginItem(good.keyspace, 0, 0, b"", good.hashes, pack_u64(bad), good.keys, shard=3)
        with pytest.raises(InvalidParams):
            core.store(1, wrong, bytes(3000 * count))
    assert core.slots.committed == 0 and not core.slots.writing.any()
    core.validate()
