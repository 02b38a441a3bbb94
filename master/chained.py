"""Tables of chained keyspaces: a block counts only if every block before it is there (invariants I1, I2).

Rows are linked inside a run: parent, first child, siblings. Links never cross runs; a run's first block hangs
on nothing. A row whose parent isn't known yet hangs on a placeholder: a row without copies that lives as long
as something hangs on it.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from moonpool.master.columns import NO_ROW, view
from moonpool.master.entries import EntryColumns
from moonpool.master.eviction import EvictionPolicy
from moonpool.master.many_rows import make_rows, settle_rows
from moonpool.master.open_entries import F64
from moonpool.master.table import Table, Usable
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.packed import I64
from moonpool.schemas.runs import run_start

SETTLE_ROWS_MAX = 4096
"""Rows made ready in one call; the rest follows with the next ticks (becoming ready may lag)."""


class ChainedTable(Table):
    """Rows with links. `ready` is monotone along a run: no row is ready whose parent isn't."""

    def __init__(self, spec: KeyspaceSpec, policy: EvictionPolicy) -> None:
        super().__init__(spec, policy)
        self.parent = self.columns.add("i", fill=b"\xff")
        self.first_child = self.columns.add("i", fill=b"\xff")
        self.next_sibling = self.columns.add("i", fill=b"\xff")
        self.previous_sibling = self.columns.add("i", fill=b"\xff")
        self.positions = self.columns.add("I")
        self.unsettled: deque[int] = deque()  # ready rows whose children have not been looked at

    # ------------------------------------------------------------ queries

    def ready_prefix(self, hashes: bytes) -> tuple[int, int]:
        """How many of a run's packed hashes are ready, from the first on, and the row of the last such one.

        Readiness is monotone along a run: probe the last block, then bisect.
        """
        size = self.spec.hash_bytes
        get, ready = self.rows.get, self.ready
        low, high, deepest = 0, len(hashes) // size, NO_ROW  # `low` are ready, block `high` isn't
        probe = high
        while low < high:
            row = get(hashes[(probe - 1) * size : probe * size])
            if row >= 0 and ready[row]:
                low, deepest = probe, row
            else:
                high = probe - 1
            probe = (low + high + 1) // 2
        return low, deepest

    def followers(self, row: int, count: int) -> tuple[list[int], bool]:
        """Up to `count` ready rows that hang below a ready one, as far as each has one ready child only; and whether
        nothing ready comes after them."""
        rows: list[int] = []
        while True:
            child, ready = self.first_child[row], NO_ROW
            while child >= 0:
                if self.ready[child]:
                    if ready >= 0:
                        return rows, False
                    ready = child
                child = self.next_sibling[child]
            if ready < 0:
                return rows, True
            if len(rows) == count:
                return rows, False
            rows.append(ready)
            row = ready

    def live_prefix(self, length: int, deepest: int, usable: Usable) -> tuple[int, int]:
        """The same, cut at the first row without a live copy. Walks the run: only while a node is suspect."""
        if not length:
            return 0, NO_ROW
        rows = self.ancestors(deepest, length)
        dead = np.flatnonzero(~self.live(rows, usable))
        alive = (
            int(dead[0]) if len(dead) else len(rows)
        )  # fewer than asked for, where hashes and positions differ
        return alive, int(rows[alive - 1]) if alive else NO_ROW

    def ancestors(self, deepest: int, count: int) -> I64:
        """The `count` rows of a run that end with `deepest`, in order of position; fewer where it begins earlier."""
        # Rows that came with one report lie side by side: one comparison instead of a walk.
        first = deepest - count + 1
        if first >= 0 and np.array_equal(
            view(self.parent)[first + 1 : deepest + 1], np.arange(first, deepest)
        ):
            return np.arange(first, deepest + 1)
        rows = [deepest]
        parent = self.parent
        row = deepest
        for _ in range(count - 1):
            row = parent[row]
            if row < 0:
                break
            rows.append(row)
        return np.array(rows[::-1], dtype=np.int64)

    def run_rows(self, deepest: bytes, first: int, count: int) -> I64 | None:
        """Rows of blocks first .. first+count of a ready run; None where it has left."""
        row = self.rows.get(deepest)
        if row < 0 or not self.ready[row] or self.positions[row] != first + count - 1:
            return None
        rows = self.ancestors(row, count)
        return rows if len(rows) == count else None

    def may_hang_on(self, parent: bytes, position: int, rank: int, now_s: float) -> bool:
        """Whether a block at `position` of this rank can be of use after this parent."""
        row = self.rows.get(parent)
        return (
            row >= 0
            and self.positions[row] == position - 1
            and self.sound(row, rank)
            and not self.stale(row, now_s)
        )

    # ------------------------------------------------------------ links

    def rows_of(self, entries: EntryColumns, now_s: float) -> list[int]:
        """Finds rows; makes and links those that are new. NO_ROW for an entry that contradicts their links."""
        found = self.rows.get_all(entries.hashes)
        make_rows(self, entries, found, now_s)
        positions, parent = self.positions, self.parent
        for index, row in enumerate(found):
            position = entries.positions[index]
            if (
                row >= 0
                and positions[row] == position
                and (parent[row] >= 0 or run_start(position) == position)
            ):
                continue
            found[index] = self._link(entries.hashes[index], entries.parents[index], position, now_s)
        return found

    def _link(self, block_hash: bytes, parent_hash: bytes, position: int, now_s: float) -> int:
        """The row of a block, new or a placeholder that learns its parent."""
        row = self.rows.get(block_hash)
        above = NO_ROW
        if row >= 0 and self.positions[row] != position:
            return NO_ROW
        if run_start(position) != position:
            above = self.rows.get(parent_hash)
            if parent_hash == block_hash or (above >= 0 and self.positions[above] != position - 1):
                return NO_ROW
            if above < 0:
                above = self.make_row(parent_hash, now_s)
                self.positions[above] = position - 1
        if row < 0:
            row = self.make_row(block_hash, now_s)
            self.positions[row] = position
        if above >= 0 and self.parent[row] < 0:
            self.attach(row, above)
        return row

    def attach(self, row: int, above: int) -> None:
        """Hangs a row that hangs on nothing on another one."""
        head = self.first_child[above]
        self.parent[row] = above
        self.next_sibling[row] = head
        self.first_child[above] = row
        if head >= 0:
            self.previous_sibling[head] = row

    def _detach(self, row: int) -> None:
        above, before, after = self.parent[row], self.previous_sibling[row], self.next_sibling[row]
        if before >= 0:
            self.next_sibling[before] = after
        elif above >= 0:
            self.first_child[above] = after
        if after >= 0:
            self.previous_sibling[after] = before
        self.parent[row] = self.next_sibling[row] = self.previous_sibling[row] = NO_ROW

    # ------------------------------------------------------------ readiness

    def settle(self, row: int) -> None:
        """Makes the row ready where it is complete and its parent ready, and its descendants likewise."""
        above = self.parent[row]
        if self.ready[row] or not self.complete(row) or (above >= 0 and not self.ready[above]):
            return
        self.ready[row] = 1
        if self.feed is not None:
            self.feed.stored(self, row)
        self.unsettled.append(row)
        self.settle_some(SETTLE_ROWS_MAX)

    def settle_all(self, rows: I64) -> None:
        """`settle` of many rows, each named once."""
        settle_rows(self, rows)
        self.settle_some(SETTLE_ROWS_MAX)

    def settle_some(self, rows_max: int) -> None:
        """Goes on with what `settle` left."""
        unsettled, ready = self.unsettled, self.ready
        while unsettled and rows_max > 0:
            row = unsettled.pop()
            child = self.first_child[row] if ready[row] else NO_ROW
            while child >= 0:
                if not ready[child] and self.complete(child):
                    ready[child] = 1
                    if self.feed is not None:
                        self.feed.stored(self, child)
                    unsettled.append(child)
                    rows_max -= 1
                child = self.next_sibling[child]

    def unready(self, row: int, now_s: float) -> None:
        """The row and its descendants. A row that isn't ready has no ready descendants."""
        stack = [row] if self.ready[row] else []
        while stack:
            row = stack.pop()
            self.unready_as_of(row, now_s)
            child = self.first_child[row]
            while child >= 0:
                if self.ready[child]:
                    stack.append(child)
                child = self.next_sibling[child]

    def vacate(self, row: int, now_s: float) -> None:
        """A row without copies and children leaves, then placeholders above that nothing hangs on any more."""
        while self.first_child[row] < 0:
            above = self.parent[row]
            self._detach(row)
            self.free_row(row)
            if above < 0 or self.first_child[above] >= 0:
                return
            if self.committed[above]:
                self.candidates.add_everywhere(above, now_s)
                return
            row = above

    # ------------------------------------------------------------ shape

    def position_of(self, row: int) -> int:
        """Position in the chain."""
        position: int = self.positions[row]
        return position

    def depth_of(self, row: int) -> float:
        """The end of a chain is of least use."""
        return self.position_of(row)

    def depths_of(self, rows: I64) -> F64:
        """See Depths."""
        positions: F64 = view(self.positions)[rows].astype(np.float64)
        return positions

    def child_of(self, row: int) -> int:
        """Some row that hangs on this one; NO_ROW where none does."""
        child: int = self.first_child[row]
        return child

    def has_child(self, row: int) -> bool:
        """Whether another row hangs on this one."""
        child: int = self.first_child[row]
        return child >= 0

    def parent_of(self, row: int) -> bytes:
        """Hash of the parent; empty at a run's start and where it isn't known."""
        above = self.parent[row]
        return self.hashes[above] if above >= 0 else b""

    def children_of(self, row: int) -> int:
        """How many rows hang on this one directly."""
        count, child = 0, self.first_child[row]
        while child >= 0:
            count, child = count + 1, self.next_sibling[child]
        return count

    def subtree(self, row: int, rows_max: int) -> list[int] | None:
        """The row and its descendants, parents first; None where they are more than `rows_max`."""
        rows = [row]
        for above in rows:
            child = self.first_child[above]
            while child >= 0:
                if len(rows) == rows_max:
                    return None
                rows.append(child)
                child = self.next_sibling[child]
        return rows

    def lift_use(self, row: int) -> None:
        """Hands the row's recency and uses to its parent: whoever used the row used the parent too, and a hot trunk
        must not look cold when its last child goes. Placeholders that go with the row hand them on."""
        above = self.parent[row]
        while above >= 0:
            self.last_use_s[above] = max(self.last_use_s[above], self.last_use_s[row])
            self.uses[above] = max(self.uses[above], self.uses[row])
            if self.committed[above] or self.next_sibling[row] >= 0 or self.previous_sibling[row] >= 0:
                return
            row, above = above, self.parent[above]
