"""Committed slots on their way into a table: new copies in one vectorised step, the rest one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moonpool.master.columns import NO_SEGMENT, view
from moonpool.master.drops import DropBatch
from moonpool.master.entries import EntryColumns
from moonpool.master.table import Place, Table, Usable
from moonpool.schemas.packed import I64


def commit(
    table: Table, segment: int, entries: EntryColumns, usable: Usable, now_s: float, drops: DropBatch
) -> None:
    """Takes in committed slots. Dropped are those that the index has no use for: surplus copies, also where they
    lie elsewhere, and entries that contradict what it knows. Entries that repeat what is known are no surplus."""
    if table.adopt(segment, entries, now_s):
        return
    rows: I64 = np.array(table.rows_of(entries, now_s), dtype=np.int64)
    cells = rows * table.world + entries.ranks
    chosen, new_here = _fresh(table, segment, rows, cells)
    fresh_rows = rows[chosen]
    _write(table, segment, entries, chosen, cells[chosen])
    bits = np.left_shift(np.uint64(1), entries.ranks[chosen].astype(np.uint64))
    np.bitwise_or.at(view(table.committed), fresh_rows, bits)
    table.pin_again(fresh_rows.tolist())
    for row in dict.fromkeys(fresh_rows[new_here].tolist()):
        table.candidates.add(row, segment, now_s)
    rest = np.ones(len(rows), dtype=np.bool_)
    rest[chosen] = False
    for index in np.flatnonzero(rest).tolist():
        surplus = _commit_again(table, segment, entries, index, int(rows[index]), usable, now_s)
        if surplus is not None:
            rank, block_hash = int(entries.ranks[index]), entries.hashes[index]
            drops.add(surplus.segment, table.keyspace, rank, block_hash, surplus.slot, surplus.generation)
    touched = list(dict.fromkeys(fresh_rows.tolist()))
    for row in touched:
        if table.enough(row):
            table.settle(row)
    for row in touched:
        if table.stale(row, now_s):  # somebody is at work on it again
            table.unready_as_of(row, now_s)


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
    table: Table, segment: int, entries: EntryColumns, index: int, row: int, usable: Usable, now_s: float
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
    known = table.place(row, rank)
    if known[:3] == named[:3]:
        surplus = None
    elif known.segment == segment:
        if cell >= len(marks) or marks[cell]:
            return named
        surplus = None  # the inventory under way has not named it: it was left while nobody listened
    elif usable[known.segment] and not table.only_hinted(row, rank):
        return named
    else:
        surplus = known  # its node may be back on the same stream, without an inventory that would tell
    table.slots[cell], table.generations[cell] = named.slot, named.generation
    if table.lengths is not None:
        table.used_bytes += named.length - known.length
        table.lengths[cell] = named.length
    if known.segment != segment:
        _change_segment(table, row, cell, segment, now_s)
    if cell < len(marks):
        table.marks[segment][cell] = 1
    return surplus


def _change_segment(table: Table, row: int, cell: int, segment: int, now_s: float) -> None:
    new_here = segment not in table.segments_of(row)
    table.count_copies(table.which[cell], -1, 0)
    table.count_copies(segment, 1, 0)
    table.which[cell] = segment
    if new_here:
        table.candidates.add(row, segment, now_s)
