"""Who needs copies: passes over the tables in slices, the hottest first.

A rank of a block should have as many copies as its keyspace wants, on nodes that stay; one copy at least. What lies on a
node that is to be emptied, and has enough copies elsewhere, may go from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_SEGMENT, view
from moonpool.master.many_rows import lift_uses
from moonpool.master.table import Table, Usable

PASS_EVERY_S = 1.0
FOUND_MAX = 16384
"""Of one pass: the next one finds those that are colder."""

LIFT_EVERY_S = 10.0
"""How often the beginnings of chains are told when their ends were used. What counts is a minute (planner.HOTTER_S)."""

Cells = NDArray[np.int64]
Times = NDArray[np.float64]
NO_CELLS: Cells = np.zeros(0, dtype=np.int64)
NO_TIMES: Times = np.zeros(0)


class Short(NamedTuple):
    """A rank of a row that wants a copy."""

    shard: int
    table: Table
    row: int
    rank: int


@dataclass(slots=True)
class _Stretch:
    number: int
    shard: int
    table: Table
    next_row: int = 0
    lifted: ChainedTable | None = None
    """The table, where it isn't looked at yet: its rows are told first when what hangs on them was used."""


@dataclass(frozen=True, slots=True, eq=False)
class Fates:
    """By segment index: whose copies count as kept, and who is to be emptied. `seats`: how many nodes take copies."""

    kept: Usable
    leaving: Usable
    seats: int

    def wanted(self, table: Table) -> int:
        """Copies that can be had: one at least, or a node that is to be emptied would keep the only one unnoticed."""
        return max(1, min(table.replicas, self.seats))


class Seeker:
    """One pass at a time. `short`: what the last one found and nobody has taken yet; `spare`: the same of copies that may
    leave nodes that are to be emptied."""

    def __init__(self) -> None:
        self.short: deque[Short] = deque()
        self.spare: deque[Short] = deque()
        self._stretches: deque[_Stretch] = deque()
        self._tables: list[tuple[int, Table]] = []
        self._cells: Cells = NO_CELLS
        self._owners: Cells = NO_CELLS
        self._heats: Times = NO_TIMES
        self._ceiling = np.inf
        """What is hotter was found before: those for which there is no room must not keep the others waiting."""
        self._colder = False
        self.cycles = 0
        """How often all that is short has been looked at."""
        self._dice = np.random.default_rng(0)
        self._began_s = float("-inf")
        self._lifted_s: dict[ChainedTable, float] = {}
        self._under_way = False

    def begin(self, tables: Iterable[tuple[int, Table]], leaving: list[int], now_s: float) -> None:
        """A new pass, where what the last one found is taken and a moment has passed."""
        if self._under_way or self.short or now_s - self._began_s < PASS_EVERY_S:
            return
        self._began_s = now_s
        self._tables = [
            (shard, table)
            for shard, table in tables
            if table.replicas > 1 or any(index in table.copies for index in leaving)
        ]
        self.cycles += self._ceiling == np.inf
        self._stretches = deque(_Stretch(number, *one) for number, one in enumerate(self._tables))
        self._under_way = bool(self._stretches)
        self._lift_first(now_s)

    def _lift_first(self, now_s: float) -> None:
        chained = [(shard, table) for shard, table in self._tables if isinstance(table, ChainedTable)]
        before = self._lifted_s
        self._lifted_s = {table: before.get(table, float("-inf")) for _, table in chained}
        for shard, table in chained:
            if now_s - self._lifted_s[table] >= LIFT_EVERY_S:
                self._lifted_s[table] = now_s
                self._stretches.appendleft(_Stretch(0, shard, table, lifted=table))

    def look(self, rows: int, fates: Fates, alive: Callable[[int, Table], bool]) -> None:
        """Goes on with the pass: about so many rows. `alive`: whether a shard's table is still this one."""
        while self._stretches and rows > 0:
            stretch = self._stretches[0]
            if stretch.next_row >= stretch.table.columns.count or not alive(stretch.shard, stretch.table):
                self._stretches.popleft()
                continue
            some = min(rows, stretch.table.columns.count - stretch.next_row)
            if stretch.lifted is None:
                self._look_at(stretch, some, fates)
            else:
                lift_uses(stretch.lifted, np.arange(stretch.next_row, stretch.next_row + some))
            stretch.next_row += some
            rows -= some
        if self._under_way and not self._stretches:
            self._under_way = False
            self._end()

    def _look_at(self, stretch: _Stretch, rows: int, fates: Fates) -> None:
        table, world = stretch.table, stretch.table.world
        cells = slice(stretch.next_row * world, (stretch.next_row + rows) * world)
        which = [view(layer.which)[cells] for layer in table.layers.all]
        kept = sum(fates.kept[one].astype(np.int8) for one in which)
        leaving = np.any([fates.leaving[one] for one in which], axis=0)
        there = which[0] != NO_SEGMENT
        ready = np.repeat(view(table.ready)[stretch.next_row : stretch.next_row + rows] == 1, world)
        wanted = fates.wanted(table)
        short = np.flatnonzero(there & (kept < wanted) & (ready | leaving)) + cells.start
        for cell in (np.flatnonzero(leaving & (kept >= wanted)) + cells.start).tolist():
            if len(self.spare) < FOUND_MAX:
                self.spare.append(Short(stretch.shard, table, *divmod(cell, world)))
        if len(short):
            # Rows of one request were used at one moment: the dice say which of them are found first.
            heats = np.floor(view(table.last_use_s)[short // world]) + self._dice.random(len(short))
            hidden = heats < self._ceiling
            self._keep(short[hidden], np.full(int(hidden.sum()), stretch.number), heats[hidden])

    def _keep(self, cells: Cells, owners: Cells, heats: Times) -> None:
        """Of all that was found, the FOUND_MAX hottest."""
        self._cells = np.concatenate((self._cells, cells))
        self._owners = np.concatenate((self._owners, owners))
        self._heats = np.concatenate((self._heats, heats))
        if len(self._cells) > FOUND_MAX:
            hottest = np.argpartition(-self._heats, FOUND_MAX)[:FOUND_MAX]
            self._cells, self._owners = self._cells[hottest], self._owners[hottest]
            self._heats = self._heats[hottest]
            self._colder = True

    def _end(self) -> None:
        self._ceiling = float(self._heats.min()) if self._colder else np.inf
        self._colder = False
        # Beginnings of chains before their ends, where they were used in the same second.
        order = np.lexsort((self._cells, -np.floor(self._heats)))
        for owner, cell in zip(self._owners[order].tolist(), self._cells[order].tolist(), strict=True):
            shard, table = self._tables[owner]
            self.short.append(Short(shard, table, *divmod(cell, table.world)))
        self._tables, self._cells, self._owners, self._heats = [], NO_CELLS, NO_CELLS, NO_TIMES

    def validate(self) -> None:
        """Asserts that all is bounded."""
        assert len(self.short) <= FOUND_MAX and len(self.spare) <= FOUND_MAX
        assert len(self._cells) == len(self._owners) == len(self._heats) <= FOUND_MAX
