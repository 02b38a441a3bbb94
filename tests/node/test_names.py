"""The filter of names: whatever happens in a segment, nothing that it holds is ever taken for new."""

from __future__ import annotations

import hashlib
from itertools import count
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.node_sink import IndexSink, rows_of
from support.stateful import stateful_settings

from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace
from moonpool.schemas.messages import BeginItem, DropList, Entries, Moved, Op
from moonpool.schemas.packed import join_hashes, pack_u32, pack_u64
from moonpool.store_client.node import names as names_module
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.names import Names

SPEC = objects_keyspace()
CHAINS = KeyspaceSpec(kind=Kind.CHAINED, name="chains", shard_bytes=(4000,))
KEYS = 200
SIZES = [100, 3000, 9000]


def hash_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()[: SPEC.hash_bytes]


class NamingSink(IndexSink):
    """Notes names as a node does."""

    names: Names
    new = 0

    def emit(self, op: Op, shard: int = 0) -> int:
        if isinstance(op, Entries | Moved):
            held = {entry.block_hash for entry in self.index.values()}
            new = self.names.take(op)
            if new:
                assert isinstance(op, Entries)
                hashes = [entry.block_hash for _, entry in rows_of(op)]
                assert held.isdisjoint(hashes) and len(set(hashes)) == len(hashes)
                self.new += 1
        return super().emit(op, shard)


class NamesMachine(RuleBasedStateMachine):
    """Puts of few keys, again and again, while they are dropped and moved, and the filter is made anew."""

    def __init__(self) -> None:
        super().__init__()
        small = {"HASHES_MIN": 16, "ROWS_A_PIECE": 100, "FEW": 3}
        self.patches = mock.patch.multiple(names_module, **small)
        self.patches.start()
        self.sink = NamingSink()
        self.core = NodeCore(HeapMemory(Layout(64 << 10, 8)), self.sink)
        self.names = self.sink.names = Names(self.core.slots)
        for spec in (SPEC, CHAINS):
            self.core.register(spec)
        self.put_ids = count(1)

    def teardown(self) -> None:
        self.patches.stop()

    @rule(
        numbers=st.lists(st.integers(0, KEYS), min_size=1, max_size=12),
        size_bytes=st.sampled_from(SIZES),
        chained=st.booleans(),
    )
    def put(self, numbers: list[int], size_bytes: int, chained: bool) -> None:
        hashes = [hash_of(number) for number in numbers]
        if chained:
            packed, size_bytes = b"".join(one.ljust(CHAINS.hash_bytes, b"x") for one in hashes), 4000
            item = BeginItem(CHAINS.digest(), 0, 0, b"", packed, pack_u64([size_bytes] * len(numbers)))
        else:
            lengths = pack_u64([size_bytes] * len(numbers))
            item = BeginItem(SPEC.digest(), 0, 0, b"", join_hashes(hashes), lengths)
        self.core.store(next(self.put_ids), item, memoryview(bytes(size_bytes * len(numbers))))

    @precondition(lambda self: self.sink.index)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        held = sorted(self.sink.index.items(), key=lambda item: item[0])
        keyspace = data.draw(st.sampled_from(held))[1].keyspace
        chosen = [one for one in held if one[1].keyspace == keyspace]
        chosen = chosen[:: data.draw(st.integers(1, 3))]
        slots = pack_u32([slot for slot, _ in chosen])
        generations = pack_u64([entry.generation for _, entry in chosen])
        self.core.drops.exact([DropList(keyspace, b"", b"", slots, generations)])

    @rule(size_bytes=st.sampled_from(SIZES), steps=st.integers(1, 4))
    def move(self, size_bytes: int, steps: int) -> None:
        if self.core.slots.allocator.closed_page >= 0 or self.core.moves.choose(size_bytes):
            for _ in range(steps):
                self.core.moves.step(8192)

    @rule(anew=st.booleans(), pieces=st.integers(0, 2))
    def start(self, anew: bool, pieces: int) -> None:
        if anew:
            self.names.stop()
            assert not self.names.complete and not self.names.behind
        self.names.start()
        assert self.names.complete or self.names.behind
        self.work(pieces)

    @rule(pieces=st.integers(1, 8))
    def work(self, pieces: int) -> None:
        for _ in range(pieces):
            assert self.names.work() == self.names.behind

    @invariant()
    def what_is_held_is_known(self) -> None:
        if self.names._filter is not None:
            for entry in self.sink.index.values():
                assert entry.keyspace != SPEC.digest() or knows(self.names._filter, entry.block_hash)


TestNames = NamesMachine.TestCase
TestNames.settings = stateful_settings(8000, 80)


def knows(names: names_module._Filter, block_hash: bytes) -> bool:
    """Without noting it."""
    bits, count = names._bits.copy(), names.count
    known = names.take(names_module._folded(block_hash))
    names._bits[:], names.count = bits, count
    return known


def entries_of(hashes: list[bytes], keyspace: bytes = SPEC.digest()) -> Entries:
    count = len(hashes)
    ranks, positions, parents = bytes(2 * count), bytes(4 * count), bytes(len(hashes[0]) * count)
    columns = (bytes(4 * count), bytes(8 * count), bytes(8 * count))
    return Entries(keyspace, ranks, positions, join_hashes(hashes), parents, *columns)


def names_of_nothing() -> Names:
    core = NodeCore(HeapMemory(Layout(64 << 10, 8)), IndexSink())
    core.register(SPEC)
    core.register(CHAINS)
    return Names(core.slots)


@pytest.mark.parametrize("at_once", [1, 16, 500])
def test_nearly_all_that_is_new_is_known_for_new(at_once: int) -> None:
    names = names_of_nothing()
    assert not names.take(entries_of([hash_of(0)])), "it is off"
    names.start()
    assert not names.take(entries_of([hash_of(0)])), "it hasn't read the segment"
    assert not names.work() and names.complete
    found = [
        names.take(entries_of([hash_of(number) for number in range(first, first + at_once)]))
        for first in range(1, 50_001, at_once)
    ]
    assert sum(found) > 0.95 * len(found)
    assert not names.take(entries_of([hash_of(0)])) and not names.take(entries_of([hash_of(25_000)]))


def test_what_comes_twice_at_once_is_not_new() -> None:
    names = names_of_nothing()
    names.start()
    names.work()
    few, many = [hash_of(1)] * 2, [hash_of(number) for number in (*range(10, 40), 12)]
    assert not names.take(entries_of(few))
    assert not names.take(entries_of(many))


def test_what_has_moved_behind_the_reader_is_known() -> None:
    names = names_of_nothing()
    names.start()
    names.take(Moved(SPEC.digest(), bytes(2), hash_of(7), bytes(4), bytes(8), bytes(4), bytes(8)))
    names.work()
    assert names.complete and not names.take(entries_of([hash_of(7)]))


def test_chains_are_none_of_it() -> None:
    names = names_of_nothing()
    names.start()
    names.work()
    assert not names.take(entries_of([bytes(CHAINS.hash_bytes)], CHAINS.digest()))


def test_a_full_filter_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "HASHES_MIN", 64)
    names = names_of_nothing()
    names.start()
    names.work()
    for number in range(1000):  # of which nothing stays
        names.take(entries_of([hash_of(number)]))
        names.work()
    new = [names.take(entries_of([hash_of(number)])) for number in range(2000, 2040)]
    assert sum(new) > 30


@given(st.lists(st.binary(min_size=24, max_size=24), min_size=1, max_size=40), st.integers(1, 24))
def test_one_by_one_or_together_is_the_same(texts: list[bytes], size: int) -> None:
    hashes = [text[:size] for text in texts]
    folded = [names_module._folded(one) for one in hashes]
    columns = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(len(hashes), size)
    assert names_module._folded_all(columns).tolist() == folded
    one_by_one, together = names_module._Filter(64), names_module._Filter(64)
    for number in folded:
        one_by_one.take(number)
    together.take_all(np.array(folded, dtype=np.uint64))
    assert (one_by_one._bits == together._bits).all()
