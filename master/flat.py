"""Tables of flat keyspaces: each row stands alone (window and state groups, plain objects)."""

from __future__ import annotations

from moonpool.master.columns import NO_ROW
from moonpool.master.entries import EntryColumns
from moonpool.master.eviction import EvictionPolicy
from moonpool.master.table import Table, Usable
from moonpool.schemas.keyspace import KeyspaceSpec


class FlatTable(Table):
    """Rows without links. A row is ready when no rank is missing."""

    def __init__(self, spec: KeyspaceSpec, policy: EvictionPolicy) -> None:
        super().__init__(spec, policy)
        self._soft_until_s = self.columns.add("d")

    def presence(self, hashes: list[bytes], rank: int, until_s: float, usable: Usable | None) -> bytes:
        """One byte a hash: whether all ranks (`rank` < 0) or this one are there, on usable segments where those
        are given. Leases the rows that are, with leases that yield to a put in need."""
        bits = bytearray(len(hashes))
        for index, row in enumerate(self.rows.get_all(hashes)):
            if row != NO_ROW and self._present(row, rank, usable):
                bits[index] = 1
                self._soft_until_s[row] = max(self._soft_until_s[row], until_s)
        return bytes(bits)

    def _present(self, row: int, rank: int, usable: Usable | None) -> bool:
        if not (self.ready[row] if rank < 0 else self.sound(row, rank)):
            return False
        if usable is None:
            return True
        ranks = range(self.world) if rank < 0 else (rank,)
        return all(usable[self.which[row * self.world + other]] for other in ranks)

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
