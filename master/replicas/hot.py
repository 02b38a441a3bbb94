"""Parts of prompts that many ask for: more copies on other hosts while they do, and none of them afterwards.

What is copied is what all of those prompts share of a run: from its first block over the one that they were counted by,
and on as far as one block alone follows another. Each run of a chain is counted for itself, as runs aren't linked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW, view
from moonpool.master.copies import COPIES_MAX
from moonpool.master.replicas.planner import Reason
from moonpool.master.replicas.seeker import Short
from moonpool.master.replicas.wishes import Wish, Wishes
from moonpool.master.shard_set import ShardSet
from moonpool.master.table import Table, Usable
from moonpool.schemas.packed import I64
from moonpool.schemas.runs import run_end, run_start

LOOK_EVERY_S = 5.0
COLD_AFTER_S = 60.0
"""A prefix that was hot keeps its copies so long after it was seen hot last."""

HOT_MAX = 64
"""Runs of one shard that are hot at once, the hottest."""

HOT_SHARE = 0.05
"""Of the pool's memory, for all their further copies."""

NO_ROWS: I64 = np.zeros(0, dtype=np.int64)

Name = tuple[bytes, bytes]
"""(keyspace, hash of a block of the run that a lookup has named)."""


class Heat:
    """Which runs of one shard are hot (no index, no clock): counts of hits in, names out."""

    def __init__(self, hits_per_min: int) -> None:
        self._hits_per_min = hits_per_min
        self._before: dict[Name, float] = {}
        self._looked_s: float | None = None
        self.hot: dict[Name, float] = {}
        """Until when each is, unless it is seen hot again."""
        self.copies: dict[Name, int] = {}
        """How many more of each there should be: one for each time that it was hot enough for one, at its hottest."""

    def look(self, hits: Mapping[Name, float], now_s: float) -> dict[Name, int]:
        """Counts of hits since some time, which may shrink; small ones may be left out. Returns those that are hot no
        more, and how many more copies each had."""
        if self._looked_s is not None and now_s > self._looked_s:
            wanted = self._hits_per_min * (now_s - self._looked_s) / 60
            # One that is new here may have got its count over any time: the next look tells.
            gains = {name: hits[name] - self._before[name] for name in hits.keys() & self._before.keys()}
            seen = sorted(
                (name for name, gain in gains.items() if gain >= wanted), key=lambda name: -gains[name]
            )
            for name in seen:
                if name in self.hot or len(self.hot) < HOT_MAX:
                    self.hot[name] = now_s + COLD_AFTER_S
                    copies = min(int(gains[name] / wanted), COPIES_MAX - 1)
                    self.copies[name] = max(copies, self.copies.get(name, 0))
        self._before, self._looked_s = dict(hits), now_s
        cold = {name: self.copies[name] for name, until_s in self.hot.items() if until_s <= now_s}
        for name in cold:
            del self.hot[name], self.copies[name]
        return cold

    def validate(self) -> None:
        """Asserts the bounds."""
        assert len(self.hot) <= HOT_MAX and self.copies.keys() == self.hot.keys()
        assert all(1 <= copies < COPIES_MAX for copies in self.copies.values())


class HotCopies:
    """Of one master's shards. `hits_per_min` from which on a run is hot; 0: never."""

    def __init__(self, shards: ShardSet, wishes: Wishes, hits_per_min: int) -> None:
        self._shards = shards
        self._wishes = wishes
        self._hits_per_min = hits_per_min
        self._heats: dict[int, Heat] = {}
        self._next_s = 0.0

    def look(self, kept: Usable, capacity_bytes: Callable[[], int], now_s: float) -> list[tuple[Short, int]]:
        """Wishes copies of what is hot. Returns of what no further copies are wanted any more, and how many there may
        be. `capacity_bytes`: of the whole pool."""
        if not self._hits_per_min or now_s < self._next_s:
            return []
        self._next_s = now_s + LOOK_EVERY_S
        left_bytes = int(capacity_bytes() * HOT_SHARE)
        tables = {(shard, table.keyspace): table for shard, table in self._shards.changing()}
        cold: list[tuple[Short, int]] = []
        hot: dict[Table, list[I64]] = {table: [NO_ROWS] for table in tables.values()}
        heats, self._heats = self._heats, {}
        for shard, demand in self._shards.demands():
            heat = self._heats[shard] = heats.get(shard) or Heat(self._hits_per_min)
            for name, more in heat.look(demand.hits(self._hits_per_min * LOOK_EVERY_S / 60), now_s).items():
                cells = _cells(shard, tables.get((shard, name[0])), name[1])
                cold += [(cell, more) for cell in cells]
            for name, until_s in heat.hot.items():
                cells = _cells(shard, tables.get((shard, name[0])), name[1])
                if cells:
                    hot[cells[0].table].append(_used(cells, until_s - COLD_AFTER_S))
                left_bytes -= self._wish(cells, heat.copies[name], kept, left_bytes)
        for table, rows in hot.items():
            table.layers.hot = np.unique(np.concatenate(rows))
        return cold

    def _wish(self, cells: Iterable[Short], more: int, kept: Usable, left_bytes: int) -> int:
        """Bytes that the further copies of a run take, or will."""
        size_bytes = 0
        for shard, table, row, rank in cells:
            size_bytes += more * table.place(row, rank).length
            if size_bytes > left_bytes:
                break
            segments = table.layers.segments(row * table.world + rank)
            copies = min(table.replicas + more, COPIES_MAX)
            if sum(bool(kept[one]) for one in segments) < copies and self._wishes.room() > 0:
                wish = Wish(shard, table.keyspace, table.hashes[row], rank, copies, -1, Reason.HOT)
                self._wishes.add(wish)
        return size_bytes

    def __len__(self) -> int:
        return sum(len(heat.hot) for heat in self._heats.values())

    def validate(self) -> None:
        """Asserts the bounds."""
        for heat in self._heats.values():
            heat.validate()


def _used(cells: list[Short], seen_s: float) -> I64:
    """Rows of a run, which were used when it was seen hot: that is noted at the deepest row of each prompt alone."""
    rows: I64 = np.array(sorted({cell.row for cell in cells}), dtype=np.int64)
    last_use_s = view(cells[0].table.last_use_s)
    last_use_s[rows] = np.maximum(last_use_s[rows], seen_s)
    return rows


def _cells(shard: int, table: Table | None, named: bytes) -> list[Short]:
    """Ranks of the blocks of its run that all prompts with this block share."""
    row = table.rows.get(named) if table is not None else NO_ROW
    if not isinstance(table, ChainedTable) or row == NO_ROW or not table.ready[row]:
        return []
    position = table.positions[row]
    before = table.ancestors(row, position - run_start(position) + 1).tolist()
    rows = [*before, *table.followers(row, run_end(position) - 1 - position)[0]]
    return [Short(shard, table, one, rank) for one in rows for rank in table.ranks_of(one)]
