"""Tables of flat keyspaces: each row stands alone (window and state groups, plain objects)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moonpool.master.columns import NO_SEGMENT, view
from moonpool.master.drops import DropBatch
from moonpool.master.entries import EntryColumns
from moonpool.master.eviction import FIRST_VICTIM, USES_MAX, EvictionPolicy, names_of
from moonpool.master.hash_map import FilteredMap
from moonpool.master.open_entries import F64
from moonpool.master.table import Table, Usable
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.packed import I64
from moonpool.store_client import native
from moonpool.store_client.native import FlatCells, FlatColumns, NewItems, fill_rows, forget_rows, name_rows


class FlatTable(Table):
    """Rows without links. A row is ready when no rank is missing."""

    def __init__(self, spec: KeyspaceSpec, policy: EvictionPolicy) -> None:
        super().__init__(spec, policy)
        if native.HOT:
            self.rows = FilteredMap()
        self._soft_until_s = self.columns.add("d")
        self.native: FlatColumns = (
            *(self.rows.lists, spec.hash_bytes, spec.world),
            *(self.ready, self.committed, self._soft_until_s),
            *(self.which, self.slots, self.generations, self.lengths),
        )
        """The same for loops in C (hot_rows.c)."""
        self.cells: FlatCells = (
            *(spec.world, self.ready, self.uses, self.committed, self.last_use_s, self.unready_since_s),
            *(self.which, self.slots, self.generations, self.lengths),
        )
        """What a new row fills."""

    @property
    def plain(self) -> bool:
        """Whether the columns say all: nothing is doubted, to be removed, or there twice."""
        return not (self.doubted or self.doomed or self.layers.count)

    def presence(self, hashes: bytes, rank: int, until_s: float, usable: Usable | None) -> bytes:
        """One byte a packed hash: whether all ranks (`rank` < 0) or this one are there, on usable segments where
        those are given. Leases the rows that are, with leases that yield to a put in need."""
        if native.HOT and self.plain:
            return native.find_present(self.native, hashes, rank, usable, until_s)
        rows = self.rows.find(hashes, self.spec.hash_bytes)
        if not self.columns.count:
            return bytes(len(rows))
        there = (rows >= 0) & (view(self.ready)[rows] == 1) if rank < 0 else self.all_sound(rows, rank)
        if usable is not None and rank < 0:
            there &= self.live(rows, usable)
        elif usable is not None:
            alive = usable[view(self.which)[rows * self.world + rank]]
            for layer in self.layers.more:
                alive |= usable[view(layer.which)[rows * self.world + rank]]
            there &= alive
        found = rows[there]
        soft_until_s = view(self._soft_until_s)
        soft_until_s[found] = np.maximum(soft_until_s[found], until_s)
        return there.tobytes()

    def all_sound(self, rows: I64, rank: int) -> NDArray[np.bool_]:
        """`sound` of many rows; False for NO_ROW."""
        if not self.columns.count:
            return np.zeros(len(rows), dtype=np.bool_)
        sound: NDArray[np.bool_] = (rows >= 0) & (
            (view(self.committed)[rows] >> np.uint64(rank)) & np.uint64(1) == 1
        )
        if self.doubted or self.doomed:
            sound &= [
                bool(good) and self.sound(row, rank) for good, row in zip(sound, rows.tolist(), strict=True)
            ]
        return sound

    def depth_of(self, row: int) -> float:
        """The longest unused one goes first: there is no chain whose end is of less use."""
        return -float(self.last_use_s[row])

    def depths_of(self, rows: I64) -> F64:
        """See Depths."""
        return -self.last_uses_s(rows)

    def adopt(self, segment: int, entries: EntryColumns, now_s: float) -> bool:
        """See Table: puts of plain objects."""
        items = (entries.ranks, entries.slots, entries.generations, entries.lengths)
        return self.adopt_packed(segment, entries.packed, items, now_s) is not None

    def adopt_packed(self, segment: int, packed: bytes, items: NewItems, now_s: float) -> int | None:
        """The same of packed hashes, and what is reported of each. Returns their payload bytes; None, and nothing is
        changed, where it isn't so."""
        count = len(packed) // self.spec.hash_bytes
        if not count or not (self.world == 1 or self.spec.variable_size):
            return None
        columns = self.columns
        rows = columns.take_many(count)
        if columns.count > len(self.hashes):
            self.hashes.extend([b""] * (columns.count - len(self.hashes)))
        if not name_rows(self.rows.lists, self.hashes, packed, self.spec.hash_bytes, rows):
            columns.give_many(rows[::-1])
            return None
        size_bytes = fill_rows(self.cells, rows, items, segment, now_s)
        if self.lengths is None:
            size_bytes = count * self.spec.shard_bytes[0]
        self.count_copies(segment, count, size_bytes)
        if self.marks:
            self._mark(segment, rows, items[0])
        if self.kept_pins:
            self.pin_again(rows)
        recalled = self.policy.recall_packed(packed, self.spec.hash_bytes)
        if not recalled:
            self.candidates.add_new(rows, 1, segment, now_s)
            return size_bytes
        for row, uses in zip(rows, recalled, strict=True):
            self.uses[row] = min(uses + 1, USES_MAX)
        for uses in set(recalled):
            same = [row for row, recall in zip(rows, recalled, strict=True) if recall == uses]
            self.candidates.add_new(same, min(uses + 1, USES_MAX), segment, now_s)
        return size_bytes

    def _mark(self, segment: int, rows: list[int], ranks: Any) -> None:
        """The inventory under way need not name them."""
        marks = self.marks.get(segment)
        if marks:
            cells = np.array(rows, dtype=np.int64) * self.world + np.frombuffer(ranks, dtype="<u2")
            view(marks)[cells[cells < len(marks)]] = 1

    def evictable(self, rows: I64, segment: int, level: int, score: int, now_s: float) -> NDArray[np.bool_]:
        """See Table."""
        if self.world != 1:
            return np.zeros(len(rows), dtype=np.bool_)
        levels = np.array([self.policy.level(uses) for uses in range(USES_MAX + 1)])
        good: NDArray[np.bool_] = (
            (view(self.which)[rows] == segment)
            & (view(self.leased_until_s)[rows] <= now_s)
            & (view(self._soft_until_s)[rows] <= now_s)
            & (levels[view(self.uses)[rows]] == level)
        )
        for layer in self.layers.more:
            good &= view(layer.which)[rows] == NO_SEGMENT
        if score != FIRST_VICTIM:
            good &= np.floor(view(self.last_use_s)[rows]) <= score
        if len(self.pins):
            good &= ~np.isin(rows, self.pins.rows())
        ordered = np.sort(rows)
        if (ordered[1:] == ordered[:-1]).any():  # seldom: one that became a candidate again
            once = np.zeros(len(rows), dtype=np.bool_)
            once[np.unique(rows, return_index=True)[1]] = True
            good &= once
        return good

    def bytes_of(self, rows: I64) -> I64:
        """See Table."""
        if self.lengths is None:
            return np.full(len(rows), self.spec.shard_bytes[0], dtype=np.int64)
        sizes: I64 = view(self.lengths)[rows].astype(np.int64)
        return sizes

    def last_uses_s(self, rows: I64) -> F64:
        """When each was last used."""
        times_s: F64 = view(self.last_use_s)[rows]
        return times_s

    def discard_alike(self, rows: I64, segment: int, drops: DropBatch) -> None:
        """See Table."""
        numbers: list[int] = rows.tolist()
        packed = forget_rows(self.rows.lists, self.hashes, self.spec.hash_bytes, numbers)
        self.policy.evicted_all(names_of(packed, self.spec.hash_bytes), view(self.uses)[rows])
        drops.add_rows(segment, self.keyspace, packed, view(self.slots)[rows], view(self.generations)[rows])
        self.count_copies(segment, -len(numbers), -int(self.bytes_of(rows).sum()))
        view(self.which)[rows] = NO_SEGMENT
        view(self.committed)[rows] = 0
        view(self.ready)[rows] = 0
        view(self.leased_until_s)[rows] = view(self._soft_until_s)[rows] = 0.0
        for special in (self.doubted, self.doomed):
            for row in special.keys() & set(numbers):
                del special[row]
        self.columns.give_many(numbers)

    def rows_of(self, entries: EntryColumns, now_s: float) -> list[int]:
        """Finds rows; makes those that are new."""
        found = self.rows.get_all(entries.hashes)
        for index, row in enumerate(found):
            if row < 0:
                block_hash = entries.hashes[index]
                row = self.rows.get(block_hash)  # a hash may be named twice
                found[index] = self.make_row(block_hash, now_s) if row < 0 else row
        return found

    def settle(self, row: int) -> None:
        """Ready when complete."""
        if self.complete(row):
            self.ready[row] = 1

    def unready(self, row: int, now_s: float) -> None:
        """Not ready as of now."""
        if self.ready[row]:
            self.unready_as_of(row, now_s)

    def vacate(self, row: int, now_s: float) -> None:
        """A row without copies leaves."""
        self._soft_until_s[row] = 0.0
        self.free_row(row)

    def has_child(self, row: int) -> bool:
        """Never."""
        return False

    def subtree(self, row: int, rows_max: int) -> list[int] | None:
        """The row alone."""
        return [row]

    def soft_until_s(self, row: int) -> float:
        """End of the lease that yields to a put in need."""
        until_s: float = self._soft_until_s[row]
        return until_s
