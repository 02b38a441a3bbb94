"""Committed slots on their way into a table: new copies in one vectorised step, the rest one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_SEGMENT, view
from moonpool.master.copies import COPIES_MAX, Place, only_hinted
from moonpool.master.drops import DropBatch
from moonpool.master.entries import EntryColumns
from moonpool.master.many_rows import MANY, add_candidates
from moonpool.master.table import Table, Usable
from moonpool.schemas.messages import PutAnswer
from moonpool.schemas.packed import I64


def commit(
    table: Table,
    segment: int,
    entries: EntryColumns,
    usable: Usable,
    now_s: float,
    drops: DropBatch,
    copies_max: int = 1,
) -> dict[int, PutAnswer]:
    """Takes in committed slots. Dropped are those that the index has no use for: surplus copies, also where they
    lie elsewhere, and entries that contradict what it knows. Entries that repeat what is known are no surplus.
    `copies_max`: of a cell, where these are no surplus. Returns generations of the entries that it has no use for, and
    what a PutStart would have said of them."""
    refused: dict[int, PutAnswer] = {}
    if table.adopt(segment, entries, now_s):
        return refused
    rows: I64 = np.array(table.rows_of(entries, now_s), dtype=np.int64)
    cells = rows * table.world + entries.ranks
    chosen, new_here = _fresh(table, segment, rows, cells)
    fresh_rows = rows[chosen]
    _write(table, segment, entries, chosen, cells[chosen])
    bits = np.left_shift(np.uint64(1), entries.ranks[chosen].astype(np.uint64))
    np.bitwise_or.at(view(table.committed), fresh_rows, bits)
    table.pin_again(fresh_rows.tolist())
    _queue(table, list(dict.fromkeys(fresh_rows[new_here].tolist())), segment, now_s)
    rest = np.ones(len(rows), dtype=np.bool_)
    rest[chosen] = False
    if rest.any():
        _mark_known(table, segment, entries, cells, rest)
    for index in np.flatnonzero(rest).tolist():
        surplus = _commit_again(table, segment, entries, index, int(rows[index]), usable, now_s, copies_max)
        if surplus is not None:
            rank, block_hash = int(entries.ranks[index]), entries.hashes[index]
            if (surplus.segment, surplus.generation) == (segment, entries.generations[index]):
                sound = rows[index] >= 0 and table.sound(int(rows[index]), rank)
                refused[surplus.generation] = PutAnswer.EXISTS if sound else PutAnswer.BUSY
            drops.add(surplus.segment, table.keyspace, rank, block_hash, surplus.slot, surplus.generation)
    touched = list(dict.fromkeys(fresh_rows.tolist()))
    if isinstance(table, ChainedTable) and len(touched) >= MANY:
        table.settle_all(np.array(touched, dtype=np.int64))
        touched = [row for row in touched if not table.ready[row]]
    else:
        for row in touched:
            if table.enough(row):
                table.settle(row)
    for row in touched:
        if table.stale(row, now_s):  # somebody is at work on it again
            table.unready_as_of(row, now_s)
    return refused


def _queue(table: Table, rows: list[int], segment: int, now_s: float) -> None:
    if isinstance(table, ChainedTable) and len(rows) >= MANY:
        add_candidates(table, np.array(rows, dtype=np.int64), segment, now_s)
        return
    for row in rows:
        table.candidates.add(row, segment, now_s)


def _mark_known(
    table: Table, segment: int, entries: EntryColumns, cells: I64, rest: NDArray[np.bool_]
) -> None:
    """Entries that say what the index knows: the inventory under way has named them. They leave `rest`."""
    known = rest & (cells >= 0)
    at = cells[known]
    same = (
        (view(table.which)[at] == segment)
        & (view(table.slots)[at] == entries.slots[known])
        & (view(table.generations)[at] == entries.generations[known])
    )
    if table.lengths is not None:
        same &= view(table.lengths)[at] == entries.lengths[known]
    rest[np.flatnonzero(known)[same]] = False
    marks = table.marks.get(segment)
    if marks:
        named = at[same]
        view(marks)[named[named < len(marks)]] = 1


def _fresh(table: Table, segment: int, rows: I64, cells: I64) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Indices of entries whose cell is empty, each cell once; and of those, whose row is new on the segment."""
    which = view(table.which)
    fresh = np.zeros(len(rows), dtype=np.bool_)
    fresh[np.unique(cells, return_index=True)[1]] = True
    fresh &= (rows >= 0) & (which[cells] == NO_SEGMENT)
    chosen = np.flatnonzero(fresh)
    there = which.reshape(-1, table.world)[rows[chosen]] == segment
    return chosen, ~there.any(axis=1)


def _write(table: Table, segment: int, entries: EntryColumns, chosen: NDArray[np.intp], cells: I64) -> None:
    if not len(chosen):
        return
    view(table.which)[cells] = segment
    view(table.slots)[cells] = entries.slots[chosen]
    view(table.generations)[cells] = entries.generations[chosen]
    if table.lengths is not None:
        view(table.lengths)[cells] = entries.lengths[chosen]
    size_bytes = table.bytes_in(entries.ranks[chosen], entries.lengths[chosen])
    table.count_copies(segment, len(chosen), size_bytes)
    marks = table.marks.get(segment)
    if marks:
        view(marks)[cells[cells < len(marks)]] = 1


def _commit_again(
    table: Table,
    segment: int,
    entries: EntryColumns,
    index: int,
    row: int,
    usable: Usable,
    now_s: float,
    copies_max: int,
) -> Place | None:
    """An entry where the index has a copy already (or that contradicts it). Returns the place that is surplus now:
    the entry's own, or the one that gave way to it."""
    columns = (entries.ranks, entries.slots, entries.generations, entries.lengths)
    rank, *where = (int(column[index]) for column in columns)
    named = Place(segment, *where)
    if row < 0:
        return named
    cell = row * table.world + rank
    marks = table.marks.get(segment, b"")
    layer = table.layers.on(cell, segment)
    surplus: Place | None = None
    if layer is not None:
        same = (layer.slots[cell], layer.generations[cell]) == (named.slot, named.generation)
        if not same and (cell >= len(marks) or marks[cell]):
            return named
        # Where the inventory under way has not named it: it was left while nobody listened.
        layer.slots[cell], layer.generations[cell] = named.slot, named.generation
    else:
        places = table.places(row, rank)
        if len(places) >= min(copies_max, COPIES_MAX) or named.length != places[0].length:
            # A node that is away may be back on the same stream, without an inventory that would tell.
            gone = (one for one in places if not usable[one.segment] or only_hinted(table, cell, one.segment))
            surplus = next(gone, None)
            if surplus is None:
                return named
            _replace(table, row, rank, surplus, named, now_s)
        else:
            table.add_copy(row, rank, named, now_s)
    _see_length(table, cell, named.length)
    if cell < len(marks):
        table.marks[segment][cell] = 1
    return surplus


def _see_length(table: Table, cell: int, length: int) -> None:
    """Copies are of one length: what was written anew while nobody listened has another one."""
    if table.lengths is not None and table.lengths[cell] != length:
        table.used_bytes += (length - table.lengths[cell]) * len(table.layers.segments(cell))
        table.lengths[cell] = length


def _replace(table: Table, row: int, rank: int, gone: Place, named: Place, now_s: float) -> None:
    new_here = named.segment not in table.segments_of(row)
    cell = row * table.world + rank
    layer = table.layers.on(cell, gone.segment)
    assert layer is not None
    table.count_copies(gone.segment, -1, 0)
    table.count_copies(named.segment, 1, 0)
    layer.which[cell], layer.slots[cell], layer.generations[cell] = named[:3]
    if new_here:
        table.candidates.add(row, named.segment, now_s)
