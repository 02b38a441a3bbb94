"""Tables of flat keyspaces: each row stands alone (window and state groups, plain objects)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moonpool.master.columns import NO_ROW, view
from moonpool.master.entries import EntryColumns
from moonpool.master.eviction import USES_MAX, EvictionPolicy
from moonpool.master.table import Table, Usable
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.packed import I64

ADOPTED_MIN = 4
"""Fewer rows are made one by one: arrays cost more to set up."""


class FlatTable(Table):
    """Rows without links. A row is ready when no rank is missing."""

    def __init__(self, spec: KeyspaceSpec, policy: EvictionPolicy) -> None:
        super().__init__(spec, policy)
        self._soft_until_s = self.columns.add("d")

    def presence(self, hashes: bytes, rank: int, until_s: float, usable: Usable | None) -> bytes:
        """One byte a packed hash: whether all ranks (`rank` < 0) or this one are there, on usable segments where
        those are given. Leases the rows that are, with leases that yield to a put in need."""
        rows = self.rows.find(hashes, self.spec.hash_bytes)
        if not self.columns.count:
            return bytes(len(rows))
        there = (rows >= 0) & (view(self.ready)[rows] == 1) if rank < 0 else self.all_sound(rows, rank)
        if usable is not None:
            segments = view(self.which).reshape(-1, self.world)[rows]
            there &= usable[segments].all(axis=1) if rank < 0 else usable[segments[:, rank]]
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

    def adopt(self, segment: int, entries: EntryColumns, now_s: float) -> bool:
        """See Table: puts of plain objects."""
        hashes = entries.hashes
        count = len(hashes)
        if count < ADOPTED_MIN or not (self.world == 1 or self.spec.variable_size):
            return False
        if max(self.rows.get_all(hashes)) != NO_ROW or len(set(hashes)) < count:
            return False
        rows = self.columns.take_many(count)
        self.hashes.extend([b""] * (self.columns.count - len(self.hashes)))
        for row, block_hash in zip(rows, hashes, strict=True):
            self.hashes[row] = block_hash
        self.rows.set_all(hashes, rows)
        uses = np.minimum(self.policy.recall_all(hashes) + 1, USES_MAX).astype(np.uint8)
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
        self.count_copies(segment, count)
        marks = self.marks.get(segment)
        if marks:
            view(marks)[cells[cells < len(marks)]] = 1
        self.candidates.add_new(rows, uses, segment, now_s)
        return True

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
