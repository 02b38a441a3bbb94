"""Further copies of a table's cells: columns like those of the first ones, made when the first such copy comes.

The layers of a cell are filled from the first one up, each segment holds one copy at most, and the last one takes the
place of one that goes. So a cell without a first copy has none, and readers who look at the first layer alone are right.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.master.columns import NO_SEGMENT, view
from moonpool.schemas.packed import I64

if TYPE_CHECKING:
    from moonpool.master.drops import DropBatch
    from moonpool.master.table import Table, Usable

COPIES_MAX = 4
"""Copies of one (row, rank)."""

SEARCHED_ROWS = 1 << 17
"""Rows of a table that one search for surplus copies looks at: half a millisecond."""


class Place(NamedTuple):
    """Where one copy of a rank of a row lies."""

    segment: int
    slot: int
    generation: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One copy of each cell, where there is one. What differs between copies of a cell; its length does not."""

    which: array[int]
    slots: array[int]
    generations: array[int]


class Layers:
    """Of one table. `all` begins with its own columns."""

    def __init__(self, table: Table) -> None:
        self._columns = table.columns
        self._world = table.world
        self._nowhere = array("H", [NO_SEGMENT] * table.world)
        self.all = [Layer(table.which, table.slots, table.generations)]
        self.more: list[Layer] = []
        """Those beside the first one."""
        self.count = 0
        """Copies in those."""
        self.ordered = False
        """Whether a copy came that a master had ordered."""
        self.turn = 0
        """Readers take the copies of a cell in turns."""
        self.hand = 0
        """Row at which the search for surplus copies goes on."""
        self.hot: I64 = np.zeros(0, dtype=np.int64)
        """Rows that many ask for now, as of the last look: their surplus copies are wanted."""

    def holding(self, cell: int) -> Iterator[Layer]:
        """Those that have a copy of the cell."""
        for layer in self.all:
            if layer.which[cell] == NO_SEGMENT:
                return
            yield layer

    def segments(self, cell: int) -> list[int]:
        """Where its copies are."""
        return [layer.which[cell] for layer in self.holding(cell)]

    def on(self, cell: int, segment: int) -> Layer | None:
        """The one that has the cell's copy on a segment."""
        for layer in self.all:
            if layer.which[cell] == segment:
                return layer
        return None

    def put(self, cell: int, segment: int, slot: int, generation: int) -> None:
        """One more copy of a cell that has one."""
        free = next((layer for layer in self.more if layer.which[cell] == NO_SEGMENT), None)
        if free is None:
            add, world = self._columns.add, self._world
            free = Layer(add("H", world, b"\xff"), add("I", world), add("Q", world))
            self.all.append(free)
            self.more.append(free)
            assert len(self.all) <= COPIES_MAX, "more copies than there may be"
        free.which[cell], free.slots[cell], free.generations[cell] = segment, slot, generation
        self.count += 1

    def take(self, cell: int, segment: int) -> bool:
        """The copy on a segment is gone. Returns whether another one is left."""
        held = list(self.holding(cell))
        gone = next(layer for layer in held if layer.which[cell] == segment)
        last = held[-1]
        gone.which[cell], gone.slots[cell], gone.generations[cell] = (
            last.which[cell],
            last.slots[cell],
            last.generations[cell],
        )
        last.which[cell] = NO_SEGMENT
        self.count -= len(held) > 1
        return len(held) > 1

    def clear(self, row: int) -> None:
        """None of a row's copies is left."""
        first, end = row * self._world, (row + 1) * self._world
        for layer in self.more:
            self.count -= self._world - layer.which[first:end].count(NO_SEGMENT)
        for layer in self.all:
            layer.which[first:end] = self._nowhere


def name_copies(table: Table, row: int, segment: int, drops: DropBatch) -> list[int]:
    """Names a row's copies on a segment for its node to drop. Returns their ranks."""
    first, ranks = row * table.world, table.ranks_on(row, segment)
    layers = table.layers
    held = [(rank, layer) for rank in ranks if (layer := layers.on(first + rank, segment)) is not None]
    slots = [layer.slots[first + rank] for rank, layer in held]
    generations = [layer.generations[first + rank] for rank, layer in held]
    drops.add_row(segment, table.keyspace, table.hashes[row], ranks, slots, generations)
    return ranks


def give_up(table: Table, row: int, segment: int, now_s: float, drops: DropBatch) -> None:
    """A row's copies on one segment go, where each has another one elsewhere."""
    for rank in name_copies(table, row, segment, drops):
        table.drop_copy(row, rank, segment, now_s)


def spared(table: Table, row: int, segment: int, staying: Usable, copies: int) -> bool:
    """Whether each rank that lies on a segment has `copies` copies on other segments, of those that stay."""
    first = row * table.world
    return all(
        sum(bool(staying[other]) for other in table.layers.segments(first + rank) if other != segment)
        >= copies
        for rank in table.ranks_on(row, segment)
    )


def only_hinted(table: Table, cell: int, segment: int) -> bool:
    """Whether nothing but the entry log speaks of the copy on a segment: it may have gone since (I8)."""
    if segment not in table.hinted:
        return False
    marks = table.marks.get(segment)
    return marks is None or (cell < len(marks) and not marks[cell])


def surplus_on(
    table: Table, segment: int, staying: Usable, copies_max: int, victim_use_s: float = float("inf")
) -> list[tuple[int, int]]:
    """(row, rank) of copies on a segment beyond those that their table wants, `copies_max` at most. Not those of hot rows
    that were used after `victim_use_s`. A search goes on where the last one ended."""
    layers, world = table.layers, table.world
    first = layers.hand if layers.hand < table.columns.count else 0
    layers.hand = first + SEARCHED_ROWS
    surplus = _is_surplus(table, segment, staying, slice(first * world, layers.hand * world))
    here = layers.hot[(layers.hot >= first) & (layers.hot < layers.hand)]
    spared = here[view(table.last_use_s)[here] > victim_use_s] - first
    surplus.reshape(-1, world)[spared] = False
    found = np.flatnonzero(surplus)
    if len(found) > copies_max:
        found = found[:copies_max]
        layers.hand = first + int(found[-1]) // world  # the rest of that row comes next
    rows, ranks = np.divmod(found, world)
    return list(zip((rows + first).tolist(), ranks.tolist(), strict=True))


def hot_surplus_on(table: Table, segment: int, staying: Usable) -> list[tuple[int, int]]:
    """The same of all hot rows, and of no others."""
    cells = (table.layers.hot[:, None] * table.world + np.arange(table.world)).ravel()
    rows, ranks = np.divmod(cells[_is_surplus(table, segment, staying, cells)], table.world)
    return list(zip(rows.tolist(), ranks.tolist(), strict=True))


def _is_surplus(table: Table, segment: int, staying: Usable, cells: slice | I64) -> NDArray[np.bool_]:
    which = [view(layer.which)[cells] for layer in table.layers.all]
    kept = sum(staying[one].astype(np.int8) for one in which)
    found: NDArray[np.bool_] = np.any([one == segment for one in which], axis=0) & (kept > table.replicas)
    return found
