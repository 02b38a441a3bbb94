"""Copies that somebody asked for, waiting to be ordered (no I/O, no clock)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW, view
from moonpool.master.copies import COPIES_MAX
from moonpool.master.many_rows import lift_uses
from moonpool.master.replicas.planner import Reason
from moonpool.master.table import Table, Usable
from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.messages import Warm, Warmed
from moonpool.schemas.packed import I64, split_hashes

WISHES_MAX = 65536
"""Copies that may wait."""


class Wish(NamedTuple):
    """One more copy of a rank of a block, until there are `copies`; `to`: on that segment, whatever others there are (-1:
    anywhere)."""

    shard: int
    keyspace: bytes
    block_hash: bytes
    rank: int
    copies: int
    to: int
    reason: Reason = Reason.WARM


class Wishes:
    """Oldest first. What can't be had at once waits for its turn again; what can't be had at all is given up."""

    def __init__(self) -> None:
        self._waiting: deque[Wish] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def room(self) -> int:
        """How many more may be added."""
        return WISHES_MAX - len(self._waiting)

    def warm(self, message: Warm, tables: Iterable[tuple[int, Table]], kept: Usable, to: int) -> Warmed:
        """Adds what a request asks for; `tables` by shard. Raises InvalidParams."""
        if not 1 <= message.copies <= COPIES_MAX:
            raise InvalidParams(field="copies", value=message.copies, allowed=f"1 to {COPIES_MAX}")
        added: list[Wish] = []
        size_bytes = left_out = 0
        for shard, table in tables:
            if table.keyspace != message.keyspace:
                continue
            rows = rows_meant(table, message.hashes, message.with_prefix)
            for row, rank in cells_short(table, rows, kept, message.copies, to):
                if len(added) >= self.room():
                    left_out += 1
                    continue
                size_bytes += table.place(row, rank).length
                added.append(Wish(shard, table.keyspace, table.hashes[row], rank, message.copies, to))
        if not message.dry_run:
            self._waiting.extend(added)
        return Warmed(len(added), size_bytes, left_out)

    def add(self, wish: Wish) -> None:
        """One that there is room for."""
        self._waiting.append(wish)

    def take(self, count: int) -> list[Wish]:
        """The oldest ones. Those whose time has not come are added again."""
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def again(self, wishes: list[Wish]) -> None:
        """They come first the next time."""
        self._waiting.extendleft(reversed(wishes))


def rows_meant(table: Table, hashes: bytes, with_prefix: bool) -> list[int]:
    """Ready rows that a request names, or (no hashes) those of the whole table, the hottest first. Never more than may
    wait. `with_prefix`: and all before each in its run."""
    if not hashes:
        hottest: list[int] = _hottest(table).tolist()
        return hottest
    rows: dict[int, None] = {}
    named = table.rows.get_all(split_hashes(hashes, table.spec.hash_bytes))
    _lift(table, np.array([row for row in named if row != NO_ROW], dtype=np.int64))
    for row in named:
        if row == NO_ROW or not table.ready[row] or len(rows) >= WISHES_MAX:
            continue
        if with_prefix and isinstance(table, ChainedTable):
            rows.update(dict.fromkeys(table.ancestors(row, table.positions[row] + 1).tolist()))
        rows[row] = None
    return list(rows)


def _hottest(table: Table) -> I64:
    ready: I64 = np.flatnonzero(view(table.ready)).astype(np.int64)
    _lift(table, ready)
    order = np.lexsort((ready, -np.floor(view(table.last_use_s)[ready])))
    hottest: I64 = ready[order[:WISHES_MAX]]
    return hottest


def _lift(table: Table, rows: I64) -> None:
    if isinstance(table, ChainedTable):
        lift_uses(table, rows)


def cells_short(
    table: Table, rows: list[int], kept: Usable, copies: int, to: int
) -> Iterator[tuple[int, int]]:
    """(row, rank) of those that want another copy for that."""
    for row in rows:
        for rank in table.ranks_of(row):
            segments = table.layers.segments(row * table.world + rank)
            enough = to in segments if to >= 0 else sum(bool(kept[one]) for one in segments) >= copies
            if not enough and len(segments) < COPIES_MAX:
                yield row, rank
