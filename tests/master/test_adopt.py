"""Batches of new objects are taken into the index in one step: it must be as if they had come one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.paper_cluster import chain

from moonpool.master.columns import view
from moonpool.master.commits import commit
from moonpool.master.drops import DropBatch
from moonpool.master.entries import EntryColumns
from moonpool.master.flat import FlatTable
from moonpool.master.policy_adaptive import AdaptiveCredit
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.store_client import native

needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")
COUNT = 12
SEGMENT = 3
USABLE = np.ones(1 << 16, dtype=np.bool_)


def objects(world: int) -> FlatTable:
    """A table of objects of any size; some names had rows that were evicted."""
    spec = KeyspaceSpec(kind=Kind.FLAT, name="objects", shard_bytes=(0,) * world, hash_bytes=16)
    policy = AdaptiveCredit()
    for number, block_hash in enumerate(chain(COUNT, "new")[::3]):
        policy.evicted(block_hash, number + 1)
    return FlatTable(spec, policy)


def columns(hashes: list[bytes], ranks: list[int]) -> EntryColumns:
    numbers = np.arange(len(hashes))
    slots, generations = numbers.astype(np.uint32), (numbers + 100).astype(np.uint64)
    lengths = (numbers * 10 + 1).astype(np.uint64)
    numbered = np.array(ranks, dtype=np.uint16)
    return EntryColumns(hashes, b"".join(hashes), numbered, [], [], slots, generations, lengths)


def part(entries: EntryColumns, index: int) -> EntryColumns:
    one = slice(index, index + 1)
    return EntryColumns(
        entries.hashes[one],
        entries.hashes[index],
        entries.ranks[one],
        [],
        [],
        entries.slots[one],
        entries.generations[one],
        entries.lengths[one],
    )


def facts(table: FlatTable, hashes: list[bytes], world: int) -> list[object]:
    """All that is known of each row, whatever its number, and the order in which victims are taken."""
    rows = [table.rows.get(block_hash) for block_hash in hashes]
    known = [
        (
            [table.place(row, rank) for rank in range(world) if table.committed[row] >> rank & 1],
            table.ready[row],
            table.last_use_s[row],
            table.uses[row],
            table.segments_of(row),
            table.hashes[row],
            row in table.pins,
        )
        for row in rows
    ]
    queued = {table.hashes[row] for row in table.candidates.queues[SEGMENT].rows()}
    return [known, table.copies, queued, len(table)]


@pytest.mark.parametrize("hot", [pytest.param(True, marks=needs_c), False])
@pytest.mark.parametrize("world", [1, 2])
def test_a_batch_is_as_good_as_its_objects_one_by_one(
    world: int, hot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "HOT", hot)
    hashes = chain(COUNT, "new")
    entries = columns(hashes, [number % world for number in range(COUNT)])
    together, apart = objects(world), objects(world)
    for table in (together, apart):  # as a new owner knows of pins before it hears of their rows
        table.kept_pins.update(dict.fromkeys(hashes[4:6], math.inf))
    drops = DropBatch(0)
    commit(together, SEGMENT, entries, USABLE, 50.0, drops)
    monkeypatch.setattr(FlatTable, "adopt", lambda *_: False)
    for index in range(COUNT):
        commit(apart, SEGMENT, part(entries, index), USABLE, 50.0, drops)
    assert facts(together, hashes, world) == facts(apart, hashes, world)
    assert not drops.segments()


def test_it_was_one_step() -> None:
    table = objects(1)
    assert table.adopt(SEGMENT, columns(chain(COUNT, "new"), [0] * COUNT), 50.0)


@pytest.mark.parametrize("strange", ["known", "twice"])
def test_a_batch_with_something_strange_is_left_alone(strange: str) -> None:
    table = objects(1)
    known = chain(COUNT, "known")
    commit(table, SEGMENT, columns(known, [0] * COUNT), USABLE, 50.0, DropBatch(0))
    hashes = chain(COUNT, "new")
    hashes[5] = known[0] if strange == "known" else hashes[2]
    before = len(table), table.columns.used
    assert not table.adopt(SEGMENT, columns(hashes, [0] * COUNT), 60.0)
    assert (len(table), table.columns.used) == before


def test_an_inventory_under_way_sees_the_batch() -> None:
    table = objects(1)
    commit(table, SEGMENT, columns(chain(COUNT, "old"), [0] * COUNT), USABLE, 50.0, DropBatch(0))
    table.start_inventory(SEGMENT)
    hashes = chain(COUNT, "new")
    commit(table, SEGMENT, columns(hashes, [0] * COUNT), USABLE, 60.0, DropBatch(0))
    marks = view(table.marks[SEGMENT])
    assert all(marks[row] for row in map(table.rows.get, hashes) if row < len(marks))


def test_of_objects_the_longest_unused_goes_first() -> None:
    table = objects(1)
    hashes = chain(COUNT, "never evicted")
    for index, at in enumerate((50.9, 50.1, 50.5)):  # the same second: rows of a chain would go by position
        four = slice(4 * index, 4 * index + 4)
        commit(table, SEGMENT, columns(hashes[four], [0] * 4), USABLE, at, DropBatch(0))
    queue = table.candidates.queues[SEGMENT].awake
    order = []
    while (first := queue.first()) is not None:
        order.append(table.last_use_s[queue.pop(first[1])[1]])
    assert len(order) == COUNT and order == sorted(order)
