"""Invariants of a table, checked from scratch. Scans everything: for tests."""

from __future__ import annotations

from collections import Counter

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW, NO_SEGMENT
from moonpool.master.table import Table
from moonpool.master.victim_queues import VictimQueue
from moonpool.schemas.runs import run_start


def validate_table(table: Table) -> None:
    """Raises AssertionError, saying what is wrong."""
    table.rows.validate()
    rows = dict(table.rows.items())
    assert len(rows) == table.columns.used, "rows that are neither named nor free"
    for block_hash, row in rows.items():
        assert table.hashes[row] == block_hash, "a row with another name"
    numbers = sorted(rows.values())
    _copies(table, numbers)
    _readiness(table, numbers)
    _candidates(table, numbers)
    if isinstance(table, ChainedTable):
        _links(table, numbers)


def _copies(table: Table, rows: list[int]) -> None:
    copies: Counter[int] = Counter()
    used_bytes = more = 0
    for row in rows:
        for rank in range(table.world):
            cell = row * table.world + rank
            segments = table.layers.segments(cell)
            assert bool(segments) == bool(table.committed[row] >> rank & 1), "bitmap and places differ"
            assert len(segments) == len(set(segments)), "two copies on one segment"
            held = sum(layer.which[cell] != NO_SEGMENT for layer in table.layers.all)
            assert held == len(segments), "a gap between copies"
            more += max(len(segments) - 1, 0)
            copies.update(segments)
            used_bytes += table.place(row, rank).length * len(segments)
        assert table.committed[row] or table.has_child(row), "a row with neither copies nor children"
        doubted = table.doubted.get(row, 0)
        assert doubted & table.committed[row] == doubted, "a doubt about nothing"
    assert +copies == Counter(table.copies), "copies counted wrongly"
    assert used_bytes == table.used_bytes, "bytes counted wrongly"
    assert more == table.layers.count, "further copies counted wrongly"
    assert set(table.doubted) <= set(rows), "a doubt about a row that left"
    assert set(table.pins.rows()) <= set(rows), "a pin on a row that left"
    assert table.doomed.keys() <= set(rows), "a removal of a row that left"


def _readiness(table: Table, rows: list[int]) -> None:
    """I1: ready means complete, with a ready parent; the reverse may lag only while something is unsettled."""
    lagging = isinstance(table, ChainedTable) and bool(table.unsettled)
    for row in rows:
        above = table.parent[row] if isinstance(table, ChainedTable) else NO_ROW
        should = table.complete(row) and (above == NO_ROW or table.ready[above] == 1)
        assert table.ready[row] == should or (lagging and should), "ready is wrong"


def _candidates(table: Table, rows: list[int]) -> None:
    """I2: whatever may be evicted will be found, without a scan."""
    assert table.copies.keys() <= table.candidates.queues.keys(), "copies that no eviction would find"
    _found_in(table, rows, table.candidates.queues)
    rebuilding = table.candidates.rebuilding
    if rebuilding is not None:
        done = [row for row in rows if row < rebuilding.next_row]
        _found_in(table, done, {rebuilding.segment: rebuilding.queue})


def _found_in(table: Table, rows: list[int], queues: dict[int, VictimQueue]) -> None:
    leaves = {segment: queue.rows() for segment, queue in queues.items()}
    trunks = {segment: queue.trunks.rows() | leaves[segment] for segment, queue in queues.items()}
    for row in rows:
        for segment in table.segments_of(row) & queues.keys():
            if row in table.pins:
                continue  # unpinning brings it back
            if table.has_child(row):
                assert row in trunks[segment], "a trunk that no peeling would find"
            else:
                assert row in leaves[segment], "a leaf that no eviction would find"


def _links(table: ChainedTable, rows: list[int]) -> None:
    children: dict[int, set[int]] = {}
    for row in rows:
        above = table.parent[row]
        if above == NO_ROW:
            starts_run = run_start(table.positions[row]) == table.positions[row]
            assert starts_run or not table.committed[row], "a block that hangs on nothing"
            continue
        assert table.hashes[above], "a parent that left"
        assert table.positions[above] + 1 == table.positions[row], "parent at the wrong position"
        assert run_start(table.positions[row]) == run_start(table.positions[above]), "a link across runs"
        children.setdefault(above, set()).add(row)
    for row in rows:
        listed: list[int] = []
        child, before = table.first_child[row], NO_ROW
        while child != NO_ROW:
            assert table.previous_sibling[child] == before, "siblings linked wrongly"
            listed.append(child)
            child, before = table.next_sibling[child], child
        assert len(listed) == len(set(listed)), "a child listed twice"
        assert set(listed) == children.get(row, set()), "children linked wrongly"
