"""Many rows of a chained table in one step, as inventories and entry logs bring them: made, linked, queued, readied.

Each of these does what the table does row by row. What isn't plain (a row named twice with different parents, forks) is
left to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.master.columns import NO_ROW, view
from moonpool.master.entries import EntryColumns
from moonpool.master.eviction import FIRST_VICTIM, USES_MAX, names_of
from moonpool.master.victims import UNREADY_S
from moonpool.schemas.packed import I64
from moonpool.schemas.runs import STRIDE, depths_in_run, run_start

if TYPE_CHECKING:
    from moonpool.master.chained import ChainedTable

MANY = 96
"""Fewer are faster one by one: arrays cost more to set up."""

LIFTS_MAX = 1 << 18
"""Rows that one call of `lift_uses` hands a use."""


class _Plan(NamedTuple):
    """Of new rows, in the order in which they are named. `above`: a row, or NO_ROW at a run's start, or an index into
    the new ones themselves where `within`. `unknown`: hashes of parents that nobody has named, with their positions."""

    names: list[bytes]
    positions: list[int]
    above: list[int]
    within: list[bool]
    unknown: dict[bytes, list[int]]


def make_rows(table: ChainedTable, entries: EntryColumns, found: list[int], now_s: float) -> None:
    """Makes and links rows for the entries that have none, and puts them into `found`. Does nothing where they are few,
    or contradict themselves or what is known."""
    missing = [index for index, row in enumerate(found) if row < 0]
    if len(missing) < MANY:
        return
    plan = _plan(table, entries, missing)
    if plan is None:
        return
    rows = table.columns.take_many(len(plan.names))
    table.hashes.extend([b""] * (table.columns.count - len(table.hashes)))
    for row, name in zip(rows, plan.names, strict=True):
        table.hashes[row] = name
    table.rows.set_all(plan.names, rows)
    numbers: I64 = np.array(rows, dtype=np.int64)
    view(table.last_use_s)[numbers] = view(table.unready_since_s)[numbers] = now_s
    names = names_of(b"".join(plan.names), table.spec.hash_bytes)
    uses = np.minimum(table.policy.recall_all(names) + 1, USES_MAX).astype(np.uint8)
    view(table.uses)[numbers] = uses
    view(table.positions)[numbers] = plan.positions
    table.candidates.note_all_unready(rows, now_s)
    above: I64 = np.array(plan.above, dtype=np.int64)
    within = np.array(plan.within, dtype=np.bool_)
    above[within] = numbers[above[within]]
    for name, children in plan.unknown.items():
        placeholder = table.make_row(name, now_s)
        table.positions[placeholder] = plan.positions[children[0]] - 1
        above[children] = placeholder
    _attach(table, numbers, above)
    get = table.rows.get
    for index in missing:
        found[index] = get(entries.hashes[index])


def _plan(table: ChainedTable, entries: EntryColumns, missing: list[int]) -> _Plan | None:
    """None where it isn't plain."""
    hashes, positions, parents = entries.hashes, entries.positions, entries.parents
    first: dict[bytes, int] = {}
    number: dict[bytes, int] = {}
    for index in missing:
        name = hashes[index]
        known = first.setdefault(name, index)
        if known == index:
            number[name] = len(number)
        elif (positions[known], parents[known]) != (positions[index], parents[index]):
            return None
    chosen = list(first.values())
    above: list[int] = []
    within: list[bool] = []
    unknown: dict[bytes, list[int]] = {}
    for index in chosen:
        position, parent = positions[index], parents[index]
        other = number.get(parent)
        within.append(False)
        if run_start(position) == position:
            above.append(NO_ROW)
        elif other is not None:
            if positions[chosen[other]] != position - 1:
                return None
            above.append(other)
            within[-1] = True
        else:
            row = table.rows.get(parent)
            if row >= 0 and table.positions[row] != position - 1:
                return None
            if row < 0:
                siblings = unknown.setdefault(parent, [])
                siblings.append(len(above))
                if positions[chosen[siblings[0]]] != position:
                    return None
            above.append(row)
    return _Plan(list(first), [positions[index] for index in chosen], above, within, unknown)


def _attach(table: ChainedTable, rows: I64, above: I64) -> None:
    hanging = above >= 0
    rows, above = rows[hanging], above[hanging]
    _, inverse, counts = np.unique(above, return_inverse=True, return_counts=True)
    alone = (counts[inverse] == 1) & (view(table.first_child)[above] == NO_ROW)
    view(table.parent)[rows[alone]] = above[alone]
    view(table.first_child)[above[alone]] = rows[alone]
    for row, parent in zip(rows[~alone].tolist(), above[~alone].tolist(), strict=True):
        table.attach(row, parent)


def add_candidates(table: ChainedTable, rows: I64, segment: int, now_s: float) -> None:
    """Rows, each named once, that have their first copies on a segment: for the queues of victims."""
    last_use_s = view(table.last_use_s)[rows]
    stale = (view(table.ready)[rows] == 0) & (view(table.unready_since_s)[rows] + UNREADY_S <= now_s)
    scores = np.where(stale, FIRST_VICTIM, last_use_s.astype(np.int64))
    levels = np.array([table.policy.level(uses) for uses in range(256)])[view(table.uses)[rows]]
    levels[view(table.first_child)[rows] >= 0] = TRUNKS
    kinds, inverse = np.unique(np.stack([levels, scores]), axis=1, return_inverse=True)
    for kind, (level, score) in enumerate(kinds.T.tolist()):
        some = rows[inverse.ravel() == kind].tolist()
        table.candidates.add_alike(some, segment, None if level == TRUNKS else level, score)


def lift_uses(table: ChainedTable, rows: I64) -> None:
    """Whoever used one of these rows used all that it hangs on, but a use is noted at the deepest row of a run alone:
    hands last uses up. What is too much for one call goes on with the next one of the rows where it ended."""
    parent, last_use_s = view(table.parent), view(table.last_use_s)
    left = LIFTS_MAX
    rows = rows[parent[rows] >= 0]
    rows = rows[last_use_s[rows] > last_use_s[parent[rows]]]
    depths = depths_in_run(view(table.positions)[rows].astype(np.int64))
    order = np.argsort(-depths, kind="stable")
    rows, depths = rows[order], depths[order]
    ends = np.searchsorted(-depths, np.arange(-STRIDE, 1), side="right").tolist()
    above, begin = rows[:0], 0
    # All of one depth at once, the deepest first: each hands on what it was handed.
    for end in ends:
        if end > begin:
            above = np.concatenate((above, rows[begin:end]))
            begin = end
        elif not len(above):
            continue
        above = _lift(parent, last_use_s, above)
        left -= len(above)
        if left < 0:
            return


def _lift(parent: NDArray[Any], last_use_s: NDArray[Any], rows: I64) -> I64:
    """Rows that were handed a later use."""
    above = parent[rows]
    used_s = last_use_s[rows]
    later = np.flatnonzero((used_s > last_use_s[above]) & (above >= 0))
    above, used_s = above[later], used_s[later]
    np.maximum.at(last_use_s, above, used_s)
    # One of those that hand on the same use to the same row is enough.
    above.sort()
    return above[np.flatnonzero(np.diff(above, prepend=NO_ROW))].astype(np.int64)


TRUNKS = -1
"""In the place of a level."""


def settle_rows(table: ChainedTable, rows: I64) -> None:
    """Readies those that are complete and whose parents are ready, and what hangs on them."""
    committed = view(table.committed)[rows]
    enough = committed != 0 if table.spec.variable_size else committed == np.uint64(table.full)
    rows = rows[enough & (view(table.ready)[rows] == 0)]
    rows = rows[np.argsort(view(table.positions)[rows], kind="stable")]  # parents first
    ready, above = table.ready, view(table.parent)[rows].tolist()
    fresh: list[int] = []
    for row, parent in zip(rows.tolist(), above, strict=True):
        if (parent < 0 or ready[parent]) and row not in table.doubted and row not in table.doomed:
            ready[row] = 1
            fresh.append(row)
            if table.feed is not None:
                table.feed.stored(table, row)
    for row in fresh:
        child = table.first_child[row]
        if child >= 0 and (not ready[child] or table.next_sibling[child] >= 0):
            table.unsettled.append(row)
