"""Chunks of the entry log: what is decoded makes the same table again, and passes write what has changed, no more."""

from __future__ import annotations

import random

import numpy as np
import pytest

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW
from moonpool.master.commits import commit
from moonpool.master.drops import DropBatch
from moonpool.master.entries import read_entries
from moonpool.master.entry_log.chunk import CELLS_MAX, decode_chunk, encode_chunk, rows_a_chunk
from moonpool.master.entry_log.sweep import LogSweep, keyspace_of
from moonpool.master.flat import FlatTable
from moonpool.master.policy_adaptive import AdaptiveCredit
from moonpool.master.store.base import Put
from moonpool.master.table import Table
from moonpool.schemas.errors import CorruptStore
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace
from moonpool.schemas.messages import Entries
from moonpool.schemas.packed import pack_u16, pack_u32, pack_u64

USABLE = np.ones(1 << 16, dtype=np.bool_)
NAMES = {7: (b"segment-7", "node-7"), 300: (b"segment-300", "node-300")}

Copies = dict[tuple[bytes, int], tuple[bytes, int, int, int, int, bytes]]
"""(hash, rank): segment, slot, generation, length, position, parent."""


def chained(world: int) -> ChainedTable:
    shard_bytes = tuple(4096 * (rank + 1) for rank in range(world))
    return ChainedTable(
        KeyspaceSpec(kind=Kind.CHAINED, name="m", shard_bytes=shard_bytes, hash_bytes=16), AdaptiveCredit()
    )


def fill(table: Table, blocks: int, seed: int = 0) -> None:
    """Chains of up to 700 blocks, ranks spread over two segments, slots in order with gaps."""
    rng = random.Random(seed)
    slot, done = 0, 0
    while done < blocks:
        length = min(rng.randrange(1, 700), blocks - done)
        hashes = [rng.randbytes(16) for _ in range(length)]
        for rank in range(table.world):
            slot += rng.choice([1, 1, 5])
            count = len(hashes)
            chain = table.spec.kind is Kind.CHAINED
            entries = Entries(
                table.keyspace,
                pack_u16([rank] * count),
                pack_u32(range(count)) if chain else b"",
                b"".join(hashes),
                b"".join([bytes(16), *hashes[:-1]]) if chain else b"",
                pack_u32(range(slot, slot + count)),
                pack_u64([rng.randrange(1, 1 << 50) for _ in hashes]),
                pack_u64([table.spec.shard_bytes[rank] or rng.randrange(1, 1 << 30) for _ in hashes]),
            )
            slot += count
            segment = rng.choice(list(NAMES))
            commit(table, segment, read_entries(entries, table.spec), USABLE, 1.0, DropBatch(0))
        done += length


def copies(table: Table, names: dict[int, bytes]) -> Copies:
    found: Copies = {}
    for block_hash, row in table.rows.items():
        for rank in table.ranks_of(row):
            place = table.place(row, rank)
            found[block_hash, rank] = (
                names[place.segment], place.slot, place.generation, place.length,
                table.position_of(row), table.parent_of(row),
            )  # fmt: skip
    return found


def again(table: Table, records: list[bytes]) -> tuple[Table, dict[int, bytes]]:
    """A table made of chunks alone."""
    fresh = type(table)(table.spec, AdaptiveCredit())
    indices: dict[bytes, int] = {}
    for data in records:
        for part in decode_chunk(data, table.spec):
            index = indices.setdefault(part.segment, len(indices))
            assert part.node == part.segment.decode().replace("segment", "node")
            commit(fresh, index, read_entries(part.entries, fresh.spec), USABLE, 1.0, DropBatch(0))
    return fresh, {index: segment for segment, index in indices.items()}


def chunks(table: Table) -> list[bytes]:
    count = -(-table.columns.count // rows_a_chunk(table))
    return [data for chunk in range(count) if (data := encode_chunk(table, chunk, NAMES.__getitem__))]


@pytest.mark.parametrize("world", [1, 3, 64])
def test_a_chained_table_comes_back(world: int) -> None:
    table = chained(world)
    fill(table, 2000 // world)
    records = chunks(table)
    assert len(records) > 1
    fresh, names = again(table, records)
    before = copies(table, {index: name[0] for index, name in NAMES.items()})
    assert len(before) >= 1900 // world * world
    assert copies(fresh, names) == before
    ready = {one for one, row in table.rows.items() if table.ready[row]}
    assert {one for one, row in fresh.rows.items() if fresh.ready[row]} == ready


def test_a_flat_table_of_any_sizes_comes_back() -> None:
    table = FlatTable(objects_keyspace(), AdaptiveCredit())
    fill(table, 1500)
    fresh, names = again(table, chunks(table))
    assert copies(fresh, names) == copies(table, {index: name[0] for index, name in NAMES.items()})


def test_a_row_costs_little_more_than_its_hash() -> None:
    table = chained(1)
    rng = random.Random(1)
    hashes = [rng.randbytes(16) for _ in range(4096)]
    numbers = range(4096)
    entries = Entries(
        table.keyspace, pack_u16([0] * 4096), pack_u32(numbers), b"".join(hashes),
        b"".join([bytes(16), *hashes[:-1]]), pack_u32(numbers), pack_u64(range(1000, 5096)), pack_u64([4096] * 4096),
    )  # fmt: skip
    commit(table, 7, read_entries(entries, table.spec), USABLE, 1.0, DropBatch(0))
    assert sum(map(len, chunks(table))) < 4096 * 18
    assert max(map(len, chunks(table))) < CELLS_MAX * 40


def test_damaged_chunks_are_refused_and_nothing_else() -> None:
    table = chained(2)
    fill(table, 300)
    data = chunks(table)[0]
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 4])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            decode_chunk(bytes(damaged[: rng.choice([len(data), rng.randrange(len(data))])]), table.spec)
        except CorruptStore:
            refused += 1
    assert refused > 150


class Passes:
    """Passes of one sweep into a dict."""

    def __init__(self, table: Table) -> None:
        self.tables = {table.keyspace: table}
        self.stored: dict[bytes, bytes] = {}
        self.sweep = LogSweep(3)

    def run(self) -> int:
        self.sweep.begin(self.tables.values())
        written = 0
        while self.sweep.passing:
            found = self.sweep.step(self.tables.get, NAMES.__getitem__)
            if found is None:
                continue
            write, checksum = found
            written += 1
            if isinstance(write, Put):
                self.stored[write.key] = write.value
            else:
                del self.stored[write.key]
            self.sweep.wrote(write, checksum)
        self.sweep.end()
        self.sweep.validate()
        return written


def test_a_pass_writes_what_has_changed() -> None:
    table = chained(1)
    fill(table, 3000)
    passes = Passes(table)
    assert passes.run() == len(passes.stored) >= 3
    assert passes.sweep.behind == len(passes.stored)
    assert passes.run() == 0
    assert passes.sweep.behind == 0
    assert {keyspace_of(key) for key in passes.stored} == {table.keyspace}
    leaf = next(row for _, row in table.rows.items() if not table.has_child(row))
    table.drop_copy(leaf, 0, table.place(leaf, 0).segment, 2.0)
    assert passes.run() == 1
    fresh, names = again(table, list(passes.stored.values()))
    assert copies(fresh, names) == copies(table, {index: name[0] for index, name in NAMES.items()})


def test_the_log_never_grows_beyond_the_index() -> None:
    table = FlatTable(objects_keyspace(), AdaptiveCredit())
    passes = Passes(table)
    fill(table, 2000)
    passes.run()
    keys, size = len(passes.stored), sum(map(len, passes.stored.values()))
    for seed in range(1, 11):
        for block_hash, row in list(table.rows.items()):
            assert row != NO_ROW and block_hash
            table.discard(row, 2.0, DropBatch(0))
        fill(table, 2000, seed)
        passes.run()
        assert len(passes.stored) <= keys + 1
        assert sum(map(len, passes.stored.values())) < 1.3 * size  # slots of reused rows lie less in order
    for _, row in list(table.rows.items()):
        table.discard(row, 2.0, DropBatch(0))
    passes.run()
    assert passes.stored == {}


def test_what_an_earlier_owner_left_goes() -> None:
    table = chained(1)
    fill(table, 100)
    passes = Passes(table)
    passes.stored = {b"log/00003/aa/0000007": b"old"}
    passes.sweep = LogSweep(3, passes.stored)
    passes.run()
    assert set(map(keyspace_of, passes.stored)) == {table.keyspace}
