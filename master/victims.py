"""Candidates for eviction in one table: queues by segment, and the checks that a row passes before it goes (I2)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moonpool.master.columns import view
from moonpool.master.eviction import FIRST_VICTIM, EvictionPolicy
from moonpool.master.victim_queues import UnreadyRows, VictimQueue, tick_of
from moonpool.schemas.packed import I64

if TYPE_CHECKING:
    from moonpool.master.table import Table

PEEL_ROWS_MAX = 512
"""A trunk with more than this on it is too much to lose for one put."""

UNREADY_S = 60.0
"""Leaves that stay unready so long are the first victims."""

RETRY_S = 10.0
"""When a trunk that could not be peeled is looked at again."""


ALIKE_MIN = 8
ALIKE_MAX = 4096
"""Victims that are looked at together."""

_NO_ROWS: I64 = np.zeros(0, dtype=np.int64)

ENTRIES_SPARE = 16384
"""A queue is made anew where it has more entries than this, and than two a copy: the others are stale."""

REBUILD_ROWS = 1024
"""Rows of the table that a queue is made of at a time."""


class Budget:
    """How many rows one call may still look at."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def spend(self, rows: int = 1) -> bool:
        """Takes `rows` off. Returns whether they were there."""
        self.rows -= rows
        return self.rows >= 0


class Rebuild:
    """A queue made anew from the table, in slices. Whatever becomes a candidate meanwhile is added to both."""

    def __init__(self, segment: int, queue: VictimQueue) -> None:
        self.segment = segment
        self.queue = queue
        self.next_row = 0


class Candidates:
    """Queues of one table. Knows the order of victims and what protects them; removes nothing itself."""

    def __init__(self, table: Table, policy: EvictionPolicy) -> None:
        self._table = table
        self._policy = policy
        self.queues: dict[int, VictimQueue] = {}
        self.crowded: dict[int, None] = {}  # segments whose queues are to be made anew
        self.rebuilding: Rebuild | None = None
        self._unready = UnreadyRows(self._still_unready)
        self._added = 0

    # ------------------------------------------------------------ who is a candidate

    def add(self, row: int, segment: int, now_s: float) -> None:
        """The row has its first copy on the segment, or lost what protected it there."""
        queue = self.queues.get(segment)
        if queue is None:
            queue = self.queues[segment] = self._new_queue()
        self._enter(queue, row, now_s)
        if self.rebuilding is not None and self.rebuilding.segment == segment:
            self._enter(self.rebuilding.queue, row, now_s)
            return
        self._added += 1
        if self._added >= ENTRIES_SPARE:
            self._added = 0
            self._see_crowded()

    def add_new(self, rows: Sequence[int], uses: int, segment: int, now_s: float) -> None:
        """Rows without children that were made just now, their first copies all on the segment, all used so often."""
        queue = self.queues.get(segment)
        if queue is None or self.rebuilding is not None or self._added + len(rows) >= ENTRIES_SPARE:
            self.add_alike(rows, segment, self._policy.level(uses), int(now_s))
            return
        self._added += len(rows)
        if len(rows) == 1:
            queue.awake.push(self._policy.level(uses), int(now_s), rows[0])
        else:
            queue.awake.push_all(self._policy.level(uses), int(now_s), rows)

    def add_alike(self, rows: Sequence[int], segment: int, level: int | None, score: int) -> None:
        """The same as `add` of rows that have one level (None: all have children) and one score."""
        queue = self.queues.get(segment)
        if queue is None:
            queue = self.queues[segment] = self._new_queue()
        rebuilding = self.rebuilding is not None and self.rebuilding.segment == segment
        for one in [queue, self.rebuilding.queue] if rebuilding and self.rebuilding else [queue]:
            if level is None:
                one.trunks.push_all(score, rows)
            else:
                one.awake.push_all(level, score, rows)
        if not rebuilding:
            self._added += len(rows)
            if self._added >= ENTRIES_SPARE:
                self._added = 0
                self._see_crowded()

    def _new_queue(self) -> VictimQueue:
        return VictimQueue(self._table, self._policy)

    def _enter(self, queue: VictimQueue, row: int, now_s: float) -> None:
        if self._table.has_child(row):
            queue.trunks.push(self.score(row, now_s), row)
        else:
            queue.awake.push(self.level(row), self.score(row, now_s), row)

    def add_everywhere(self, row: int, now_s: float) -> None:
        """The row has become a leaf, or is no longer pinned."""
        for segment in self._table.segments_of(row):
            self.add(row, segment, now_s)

    def note_unready(self, row: int, now_s: float) -> None:
        """The row has become unready."""
        self._unready.note(row, now_s)

    def note_all_unready(self, rows: Sequence[int], now_s: float) -> None:
        """The same of many rows."""
        self._unready.note_all(rows, now_s)

    def _still_unready(self, rows: array[int], second: int) -> array[int]:
        numbers = np.unique(rows)
        since = view(self._table.unready_since_s)[numbers].astype(np.int64)
        still = numbers[(view(self._table.ready)[numbers] == 0) & (since == second)]
        return array("I", still.tobytes())

    def promote_stale(self, now_s: float, budget: Budget) -> None:
        """Puts leaves first that nobody is expected to complete any more."""
        table = self._table
        while budget.rows > 0 and (rows := self._unready.due(now_s - UNREADY_S)) is not None:
            numbers = np.unique(rows)
            unready = numbers[(view(table.ready)[numbers] == 0) & (view(table.committed)[numbers] != 0)]
            budget.spend(64 + len(unready))  # most have become ready: those cost next to nothing
            for row in unready.tolist():
                if table.stale(row, now_s) and not table.has_child(row):
                    self.add_everywhere(row, now_s)

    # ------------------------------------------------------------ stale entries

    def _see_crowded(self) -> None:
        for segment, queue in self.queues.items():
            if queue.entries > 2 * self._table.copies.get(segment, 0) + ENTRIES_SPARE:
                self.crowded[segment] = None

    def rebuild(self, now_s: float, budget: Budget) -> None:
        """Makes crowded queues anew: entries of rows that left go only when somebody needs room, or here."""
        while budget.rows > 0 and (self.rebuilding is not None or self.crowded):
            if self.rebuilding is None:
                segment = next(iter(self.crowded))
                del self.crowded[segment]
                self.rebuilding = Rebuild(segment, self._new_queue())
            self._rebuild_slice(self.rebuilding, now_s, budget)

    def _rebuild_slice(self, rebuilding: Rebuild, now_s: float, budget: Budget) -> None:
        table, queue, first = self._table, rebuilding.queue, rebuilding.next_row
        cells = view(table.which)[first * table.world : (first + REBUILD_ROWS) * table.world]
        here = np.any(cells.reshape(-1, table.world) == rebuilding.segment, axis=1)
        for layer in table.layers.more:
            cells = view(layer.which)[first * table.world : (first + REBUILD_ROWS) * table.world]
            here |= np.any(cells.reshape(-1, table.world) == rebuilding.segment, axis=1)
        rows = (np.flatnonzero(here) + first).tolist()
        budget.spend(64 + len(rows))
        for row in rows:
            if row in table.pins:
                continue  # unpinning brings it back
            if table.leased_until_s[row] > now_s and not table.has_child(row):
                queue.sleep(row, table.leased_until_s[row])
            else:
                self._enter(queue, row, now_s)
        rebuilding.next_row += REBUILD_ROWS
        if rebuilding.next_row >= table.columns.count:
            self.queues[rebuilding.segment] = queue
            self.rebuilding = None

    @property
    def entries(self) -> int:
        """In all queues, stale ones too."""
        queues = [*self.queues.values(), *([self.rebuilding.queue] if self.rebuilding else [])]
        return sum(queue.entries for queue in queues) + self._unready.entries

    def forget(self, segment: int) -> None:
        """The segment holds no copy of this table any more."""
        self.queues.pop(segment, None)
        self.crowded.pop(segment, None)
        if self.rebuilding is not None and self.rebuilding.segment == segment:
            self.rebuilding = None

    def score(self, row: int, now_s: float) -> int:
        """The second of the row's last use: coarse, so that rows of one request are equals, and the deepest of
        them goes first."""
        return FIRST_VICTIM if self._table.stale(row, now_s) else int(self._table.last_use_s[row])

    def level(self, row: int) -> int:
        """Which credit the row has."""
        return self._policy.level(self._table.uses[row])

    # ------------------------------------------------------------ who goes next

    def first_worth(self, segment: int) -> float | None:
        """Score and credit of the next leaf on the segment, as far as known without looking at it."""
        queue = self.queues.get(segment)
        first = queue.awake.first() if queue else None
        return None if first is None else first[0]

    def sure_last_use_s(self, segment: int, now_s: float, budget: Budget) -> float:
        """Last use of the next leaf, which is looked at and stays; infinite where there is none."""
        row = self.pop_leaf(segment, None, now_s, budget)
        if row is None:
            return math.inf
        self.queues[segment].awake.push(self.level(row), self.score(row, now_s), row)
        last_use_s: float = self._table.last_use_s[row]
        return last_use_s

    def next_last_use_s(self, segment: int) -> float | None:
        """Last use of the next leaf, as far as known without looking at it."""
        row = self.queues[segment].awake.peek() if segment in self.queues else None
        return None if row is None else self._table.last_use_s[row]

    def wake(self, segment: int, now_s: float, budget: Budget) -> None:
        """Puts leaves whose lease has ended back in the queue."""
        queue = self.queues[segment]
        for calendar in (queue.asleep, queue.dozing):
            while (tick := calendar.first_key()) is not None and tick <= tick_of(now_s) and budget.rows > 0:
                rows = calendar.take()
                budget.spend(len(rows))
                for row in rows:
                    queue.awake.push(self.level(row), self.score(row, now_s), row)

    def pop_alike(
        self, segment: int, want_bytes: int, worth_max: float | None, now_s: float, budget: Budget
    ) -> tuple[I64, I64]:
        """Takes the next entries of equal score and level in one step: the rows that may be evicted, of up to
        `want_bytes` together, and those that must be put back with `refile` once these are gone. Both empty: there
        are too few for it. For tables whose rows stand alone, in one copy each."""
        table, queue = self._table, self.queues[segment]
        first = queue.awake.first()
        if first is None or (worth_max is not None and first[0] > worth_max):
            return _NO_ROWS, _NO_ROWS
        about = want_bytes * len(table) // max(table.used_bytes, 1)
        count = min(ALIKE_MAX, budget.rows, about + ALIKE_MIN)
        found = queue.awake.next_entries(first[1], count) if count > 0 else None
        if found is None or len(found[1]) < ALIKE_MIN:
            return _NO_ROWS, _NO_ROWS
        score, depths, rows = found
        good = table.evictable(rows, segment, first[1], score, now_s)
        # One that was used since, or whose number was given to another row, has another depth now.
        good &= view(table.last_use_s)[rows] == depths
        sizes = np.cumsum(np.where(good, table.bytes_of(rows), 0))
        end = min(len(rows), int(np.searchsorted(sizes, want_bytes)) + 1)
        budget.spend(end)
        queue.awake.drop_entries(first[1], end)
        return rows[:end][good[:end]], rows[:end][~good[:end]]

    def refile(self, rows: I64, segment: int, now_s: float) -> None:
        """Puts candidates where they belong now."""
        queue = self.queues[segment]
        for row in rows.tolist():
            if self._stays_candidate(row, segment, now_s):
                if self._table.soft_until_s(row) > now_s:
                    queue.doze(row, self._table.soft_until_s(row))
                else:
                    queue.awake.push(self.level(row), self.score(row, now_s), row)

    def pop_leaf(self, segment: int, worth_max: float | None, now_s: float, budget: Budget) -> int | None:
        """The next row that may be evicted, where its worth is at most `worth_max` (None: any)."""
        queue = self.queues[segment]
        while (first := queue.awake.first()) is not None:
            worth, level = first
            if (worth_max is not None and worth > worth_max) or not budget.spend():
                return None
            score, row = queue.awake.pop(level)
            if not self._stays_candidate(row, segment, now_s):
                continue
            if self.level(row) != level or self.score(row, now_s) > score:
                queue.awake.push(self.level(row), self.score(row, now_s), row)
            elif self._table.soft_until_s(row) > now_s:
                queue.doze(row, self._table.soft_until_s(row))
            else:
                return row
        return None

    def pop_dozing(self, segment: int, now_s: float, budget: Budget) -> int | None:
        """The row whose presence lease ends first: taken only where nothing else is left."""
        queue = self.queues[segment]
        while queue.dozing.first_key() is not None and budget.spend():
            row = queue.dozing.pop()
            if self._stays_candidate(row, segment, now_s):
                return row
        return None

    def _stays_candidate(self, row: int, segment: int, now_s: float) -> bool:
        """Whether the row is an unprotected leaf here; puts it where it belongs if it isn't."""
        table, queue = self._table, self.queues[segment]
        if segment not in table.segments_of(row):
            return False
        if table.has_child(row):
            queue.trunks.push(self.score(row, now_s), row)
            return False
        if row in table.pins:
            return False  # unpinning brings it back
        if table.leased_until_s[row] > now_s:
            queue.sleep(row, table.leased_until_s[row])
            return False
        return True

    def pop_trunk(self, segment: int, now_s: float, budget: Budget) -> list[int] | None:
        """Where no leaf lies on the segment: the least worthy subtree whose root does, parents first."""
        table, queue = self._table, self.queues[segment]
        while (score := queue.trunks.first_score()) is not None and budget.spend():
            popped = queue.trunks.pop()
            assert popped is not None
            row = popped[1]
            if segment not in table.segments_of(row) or not table.has_child(row):
                continue
            rows = table.subtree(row, min(PEEL_ROWS_MAX, budget.rows))
            budget.spend(len(rows) if rows else PEEL_ROWS_MAX)
            if rows is None or any(table.protected(other, now_s) for other in rows):
                queue.sleep(row, now_s + RETRY_S)
                continue
            worth = max(self.score(other, now_s) for other in rows)
            if worth > score:
                queue.trunks.push(worth, row)
                continue
            return rows
        return None
