"""Committed slots on their way into a table: new copies in one vectorised step, the rest one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moonpool.master.columns import NO_SEGMENT, view
from moonpool.master.entries import EntryColumns
from moonpool.master.table import Table, Usable
from moonpool.schemas.packed import I64


def commit(table: Table, segment: int, entries: EntryColumns, usable: Usable, now_s: float) -> list[int]:
    """Takes in committed slots. Returns the indices of those that the index has no use for: surplus copies,
    and entries that contradict what it knows. Entries that repeat what is known are no surplus."""
    rows: I64 = np.array(table.rows_of(entries, now_s), dtype=np.int64)
    cells = rows * table.world + entries.ranks
    chosen, new_here = _fresh(table, segment, rows, cells)
    fresh_rows = rows[chosen]
    _write(table, segment, entries, chosen, cells[chosen])
    bits = np.left_shift(np.uint64(1), entries.ranks[chosen].astype(np.uint64))
    np.bitwise_or.at(view(table.committed), fresh_rows, bits)
    for row in dict.fromkeys(fresh_rows[new_here].tolist()):
        table.candidates.add(row, segment, now_s)
    rest = np.ones(len(rows), dtype=np.bool_)
    rest[chosen] = False
    refused = [
        index
        for index in np.flatnonzero(rest).tolist()
        if not _commit_again(table, segment, entries, index, int(rows[index]), usable, now_s)
    ]
    touched = list(dict.fromkeys(fresh_rows.tolist()))
    for row in touched:
        if table.enough(row):
            table.settle(row)
    for row in touched:
        if table.stale(row, now_s):  # somebody is at work on it again
            table.unready_as_of(row, now_s)
    return refused


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
    table.count_copies(segment, len(chosen))
    marks = table.marks.get(segment)
    if marks:
        view(marks)[cells[cells < len(marks)]] = 1


def _commit_again(
    table: Table, segment: int, entries: EntryColumns, index: int, row: int, usable: Usable, now_s: float
) -> bool:
    """An entry where the index has a copy already (or that contradicts it). Returns whether it stays."""
    if row < 0:
        return False
    rank, slot, generation = (
        int(column[index]) for column in (entries.ranks, entries.slots, entries.generations)
    )
    cell = row * table.world + rank
    marks = table.marks.get(segment, b"")
    held_by = table.which[cell]
    if held_by == segment and not table.is_at(row, rank, segment, slot, generation):
        if cell >= len(marks) or marks[cell]:
            return False
        # The inventory under way has not named the old place: it was left while nobody listened.
    elif held_by != segment and usable[held_by]:
        return False
    table.slots[cell], table.generations[cell] = slot, generation
    if table.lengths is not None:
        table.lengths[cell] = int(entries.lengths[index])
    if held_by != segment:
        _change_segment(table, row, cell, segment, now_s)
    if cell < len(marks):
        table.marks[segment][cell] = 1
    return True


def _change_segment(table: Table, row: int, cell: int, segment: int, now_s: float) -> None:
    new_here = segment not in table.segments_of(row)
    table.count_copies(table.which[cell], -1)
    table.count_copies(segment, 1)
    table.which[cell] = segment
    if new_here:
        table.candidates.add(row, segment, now_s)
