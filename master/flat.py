"""Tables of flat keyspaces: each row stands alone (window and state groups, plain objects)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moonpool.master.columns import NO_SEGMENT, PARTS, view
from moonpool.master.drops import DropBatch
from moonpool.master.entries import EntryColumns, EntryPlace
from moonpool.master.eviction import FIRST_VICTIM, USES_MAX, EvictionPolicy, names_of
from moonpool.master.open_entries import F64
from moonpool.master.table import Table, Usable
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.packed import I64
from moonpool.store_client import native
from moonpool.store_client.native import FlatColumns, forget_rows, name_rows

FEW = 4
"""So many rows are made one by one: arrays cost more to set up."""


class FlatTable(Table):
    """Rows without links. A row is ready when no rank is missing."""

    def __init__(self, spec: KeyspaceSpec, policy: EvictionPolicy) -> None:
        super().__init__(spec, policy)
        self._soft_until_s = self.columns.add("d")
        self.native: FlatColumns = (
            *(self.rows.parts, spec.hash_bytes, spec.world),
            *(self.ready, self.committed, self._soft_until_s),
            *(self.which, self.slots, self.generations, self.lengths),
        )
        """The same for loops in C (hot_rows.c)."""

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
        count, hash_bytes = len(entries.hashes), self.spec.hash_bytes
        if not count or not (self.world == 1 or self.spec.variable_size):
            return False
        if count <= FEW:
            columns = (entries.ranks, entries.slots, entries.generations, entries.lengths)
            places = zip(entries.hashes, *(column.tolist() for column in columns), strict=True)
            return self.adopt_few(segment, list(places), now_s)
        rows = self.columns.take_many(count)
        self.hashes.extend([b""] * (self.columns.count - len(self.hashes)))
        if not name_rows(self.rows.parts, self.hashes, entries.packed, hash_bytes, rows):
            self.columns.give_many(rows[::-1])
            return False
        names = names_of(entries.packed, hash_bytes)
        uses = np.minimum(self.policy.recall_all(names) + 1, USES_MAX).astype(np.uint8)
        numbers: I64 = np.array(rows, dtype=np.int64)
        cells = numbers * self.world + entries.ranks
        view(self.which)[cells] = segment
        view(self.slots)[cells] = entries.slots
        view(self.generations)[cells] = entries.generations
        if self.lengths is not None:
            view(self.lengths)[cells] = entries.lengths
        view(self.committed)[numbers] = np.left_shift(np.uint64(1), entries.ranks.astype(np.uint64))
        view(self.last_use_s)[numbers] = view(self.unready_since_s)[numbers] = now_s
        view(self.uses)[numbers] = uses
        view(self.ready)[numbers] = 1
        self.count_copies(segment, count, self.bytes_in(entries.ranks, entries.lengths))
        marks = self.marks.get(segment)
        if marks:
            view(marks)[cells[cells < len(marks)]] = 1
        self.pin_again(rows)
        self.candidates.add_new(rows, uses, segment, now_s)
        return True

    def adopt_few(self, segment: int, places: Sequence[EntryPlace], now_s: float) -> bool:
        """`adopt` of rows given one by one."""
        if not (self.world == 1 or self.spec.variable_size):
            return False
        parts, marks = self.rows.parts, self.marks.get(segment, b"")
        if len(places) > 1 and len({place[0] for place in places}) < len(places):
            return False
        for block_hash, *_ in places:
            if block_hash in parts[block_hash[0] % PARTS]:
                return False
        for block_hash, rank, slot, generation, length in places:
            row = self.columns.take()
            if row >= len(self.hashes):
                self.hashes.extend([b""] * (self.columns.count - len(self.hashes)))
            self.hashes[row] = block_hash
            parts[block_hash[0] % PARTS][block_hash] = row
            uses = self.uses[row] = min(self.policy.recall(block_hash) + 1, USES_MAX)
            cell = row * self.world + rank
            self.which[cell], self.slots[cell], self.generations[cell] = segment, slot, generation
            if self.lengths is not None:
                self.lengths[cell] = length
            self.committed[row] = 1 << rank
            self.last_use_s[row] = self.unready_since_s[row] = now_s
            self.ready[row] = 1
            self.count_copies(segment, 1, self.spec.shard_bytes[rank] if self.lengths is None else length)
            if cell < len(marks):
                self.marks[segment][cell] = 1
            if self.kept_pins:
                self.pin_again((row,))
            self.candidates.add_one(row, uses, segment, now_s)
        return True

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
        packed = forget_rows(self.rows.parts, self.hashes, self.spec.hash_bytes, numbers)
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
