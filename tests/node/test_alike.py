"""Objects that take slots of one size are begun in one go: nobody can tell from what is left of it."""

from __future__ import annotations

import numpy as np
import pytest
from support.node_sink import IndexSink

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import Begin, BeginItem, Granted, Op
from moonpool.schemas.packed import pack_u64
from moonpool.store_client.node import core as core_module
from moonpool.store_client.node.alike import begin_alike
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.core import NodeCore, Shortage
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory

SPEC = objects_keyspace()
DIGEST = SPEC.digest()
PAGE = 64 << 10


class NotingSink(IndexSink):
    """Keeps every op too."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[int, Op]] = []

    def emit(self, op: Op, shard: int) -> int:
        self.ops.append((shard, op))
        return super().emit(op, shard)


class Made:
    """A core with a session, and what one put left in it."""

    def __init__(self) -> None:
        self.sink = NotingSink()
        self.core = NodeCore(HeapMemory(Layout(PAGE, 4)), self.sink)
        self.core.register(SPEC)
        self.core.open_session(SessionRecord(1, "/lock"))

    def put(self, put_id: int, item: BeginItem) -> tuple[Granted | Shortage, bytes, bytes]:
        """What its Begin and its Commit were answered, and all of the memory after its Begin."""
        granted = self.core.begin(1, Begin(1, put_id, [item]), partial=False)
        memory = bytes(self.core.slots.data)
        committed = self.core.commit(1, [put_id])[0] if isinstance(granted, Granted) else b""
        self.core.validate()
        return granted, memory, committed


def item_of(lengths: list[int], keys: list[str], shard: int = 0) -> BeginItem:
    hashes = np.random.default_rng(len(lengths)).bytes(16 * len(lengths))
    return BeginItem(DIGEST, 0, 0, b"", hashes, pack_u64(lengths), keys, shard)


def names(count: int) -> list[str]:
    return [f"object {number} ü" for number in range(count)]


ALIKE = {
    "equal": item_of([4000] * 20, names(20), 5),
    "of one class": item_of([2050, 2100, 2060], names(3)),
    "without keys": item_of([1, 2, 3, 900], []),
    "one": item_of([60_000], names(1)),
    "empty": item_of([0, 0], names(2)),
}
OTHERS = {
    "of several classes": item_of([1000, 5000, 1000, 9000], names(4)),
    "more than a page": item_of([PAGE + 1], names(1)),
    "a page without the key": item_of([PAGE, PAGE], names(2)),
    "beyond any memory": item_of([(1 << 64) - 1] * 2, names(2)),
    "no room": item_of([40_000] * 5, names(5)),
}


@pytest.mark.parametrize("item", ALIKE.values(), ids=ALIKE)
def test_puts_are_begun_as_one_by_one(item: BeginItem, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = Made(), Made()
    first = item_of([4000] * 3, names(3))
    results = [fast.put(1, first), fast.put(2, item)]
    monkeypatch.setattr(core_module, "begin_alike", lambda *_: None)
    for mine, theirs in zip(results, [slow.put(1, first), slow.put(2, item)], strict=True):
        assert mine == theirs
    assert fast.sink.ops == slow.sink.ops
    assert fast.core.counters == slow.core.counters


@pytest.mark.parametrize("item", ALIKE.values(), ids=ALIKE)
def test_those_that_are_alike_go_the_short_way(item: BeginItem) -> None:
    made = Made()
    put = begin_alike(made.core.slots, 1, 1, item, SPEC, made.core.shards)
    assert put is not None and put.item is item and len(put.slots) == len(item.hashes) // 16


@pytest.mark.parametrize("item", OTHERS.values(), ids=OTHERS)
def test_others_leave_no_trace(item: BeginItem) -> None:
    made = Made()
    before = bytes(made.core.slots.data)
    assert begin_alike(made.core.slots, 1, 1, item, SPEC, made.core.shards) is None
    assert made.core.slots.allocator.used_bytes == 0
    head = made.core.head.layout.header_offset
    assert bytes(made.core.slots.data)[head:] == before[head:]


def test_lengths_of_another_number_are_refused() -> None:
    made = Made()
    item = BeginItem(DIGEST, 0, 0, b"", bytes(32), pack_u64([1]), [])
    with pytest.raises(InvalidParams):
        begin_alike(made.core.slots, 1, 1, item, SPEC, made.core.shards)
