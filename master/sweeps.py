"""Slow work on whole tables in slices: copies of lost segments, and copies that an inventory didn't name."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from moonpool.master.columns import view
from moonpool.master.table import Table

ROWS_A_SLICE = 4096
ROWS_A_CALL = 32768
COPIES_A_CALL = 128
"""Dropping a copy costs some 7 us; looking at one a few nanoseconds."""


@dataclass(slots=True)
class _Sweep:
    segment: int
    keyspace: bytes
    unnamed: bool
    next_row: int = 0


class Sweeps:
    """Sweeps under way, in the order in which they began."""

    def __init__(self) -> None:
        self._sweeps: deque[_Sweep] = deque()
        self.lost_copies = 0
        self.unnamed_copies = 0

    def __len__(self) -> int:
        return len(self._sweeps)

    def start(self, segment: int, tables: Iterable[Table], unnamed: bool) -> None:
        """`unnamed`: an inventory has ended. Otherwise the segment is lost."""
        for table in tables:
            if segment in table.marks if unnamed else segment in table.copies:
                self._sweeps.append(_Sweep(segment, table.keyspace, unnamed))

    def cancel(self, segment: int) -> None:
        """The segment is back, or begins its inventory anew."""
        self._sweeps = deque(sweep for sweep in self._sweeps if sweep.segment != segment)

    def under_way(self, segment: int) -> bool:
        """Whether something is left to do."""
        return any(sweep.segment == segment for sweep in self._sweeps)

    def run(self, tables: Mapping[bytes, Table], now_s: float) -> bool:
        """Goes on, for a ms at most. Returns whether there was anything to do."""
        rows, copies, any_left = ROWS_A_CALL, COPIES_A_CALL, bool(self._sweeps)
        while self._sweeps and rows > 0 and copies > 0:
            sweep = self._sweeps[0]
            table = tables.get(sweep.keyspace)
            if table is None or sweep.next_row >= table.columns.count:
                self._sweeps.popleft()
                if table is not None and sweep.unnamed:
                    table.end_inventory(sweep.segment)
                continue
            dropped = _drop_slice(table, sweep, copies, now_s)
            copies -= dropped
            if sweep.unnamed:
                self.unnamed_copies += dropped
            else:
                self.lost_copies += dropped
            rows -= ROWS_A_SLICE
        return any_left


def _drop_slice(table: Table, sweep: _Sweep, copies_max: int, now_s: float) -> int:
    """Drops the copies that go from the next slice of rows, which ends where they are too many. Returns how many."""
    cells = slice(sweep.next_row * table.world, (sweep.next_row + ROWS_A_SLICE) * table.world)
    found = view(table.which)[cells] == sweep.segment
    for layer in table.layers.more:
        found |= view(layer.which)[cells] == sweep.segment
    if sweep.unnamed:
        marks = table.marks.get(sweep.segment, b"")[cells]
        found = found[: len(marks)] & (np.frombuffer(marks, dtype=np.uint8) == 0)  # later cells are named
    doomed = np.flatnonzero(found) + cells.start
    sweep.next_row += ROWS_A_SLICE
    if len(doomed) > copies_max:
        sweep.next_row = (
            int(doomed[copies_max]) // table.world
        )  # again from there on: the cells before are empty now
        doomed = doomed[:copies_max]
    for row, rank in zip(*(part.tolist() for part in np.divmod(doomed, table.world)), strict=True):
        table.drop_copy(row, rank, sweep.segment, now_s)
    return len(doomed)
