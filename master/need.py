"""Making room on one segment: victims of all tables of all shards, oldest first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from moonpool.master.chained import ChainedTable
from moonpool.master.copies import give_up, hot_surplus_on, spared, surplus_on
from moonpool.master.drops import DropBatch
from moonpool.master.evictions import Evictions, Reason
from moonpool.master.flat import FlatTable
from moonpool.master.step import Step
from moonpool.master.table import Table, Usable
from moonpool.master.victims import Budget
from moonpool.schemas.messages import DropList

CHORE_ROWS_MAX = 4096
"""Rows put where they belong before victims are looked for."""


class Evicted(NamedTuple):
    """What a need found: the asking node's own drops, payload bytes, age of the next victim, and the steps that hold
    what others must drop."""

    drops: list[DropList]
    freed_bytes: int
    next_age_ms: int
    steps: list[Step]


def take_in_order(
    heads: list[tuple[float, int]],
    wanting: Callable[[], bool],
    take: Callable[[float, int, float | None], float | None],
) -> None:
    """From several sources, the least worth first. `heads`: what is next is worth in each, and its number. `take` is given
    these of one, takes what is worth no more than the next one's, and says what follows; None: nothing."""
    heapq.heapify(heads)
    while heads and wanting():
        worth, number = heads[0]
        rival = min((head[0] for head in heads[1:3]), default=None)  # the heap's second is among these
        following = take(worth, number, rival)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following, number))


class Room:
    """One call for `want_bytes` on a segment. `offers`: the tables, and where each one's drops are gathered. `staying`:
    segments whose copies count as kept. `chores`: rows put where they belong before that, CHORE_ROWS_MAX unless told.
    `freed_bytes`: payload that left the segment."""

    def __init__(
        self,
        segment: int,
        want_bytes: int,
        now_s: float,
        offers: Mapping[Table, DropBatch],
        budget: Budget,
        evictions: Evictions,
        staying: Usable,
        chores: Budget | None = None,
    ) -> None:
        self.freed_bytes = 0
        self._evictions = evictions
        self._segment = segment
        self._want_bytes = want_bytes
        self._now_s = now_s
        self._offers = offers
        self._budget = budget
        self._staying = staying
        self._chores = chores or Budget(CHORE_ROWS_MAX)

    def make(self) -> None:
        """Copies beyond what is wanted; then leaves in order of worth; then copies of what is hot; then those whose presence
        lease yields; then, where no leaf lies on the segment, leaves elsewhere that hang on rows of the segment."""
        self.take_surplus()
        self.take_leaves()
        here = self._here()
        for table in here:
            if table.layers.count and self._wanting():
                self._take_copies(table, hot_surplus_on(table, self._segment, self._staying))
        for table in here:
            while self._wanting() and (row := self._pop_dozing(table)) is not None:
                self._evict(table, row, Reason.LEASED)
        for table in here:
            while self._wanting() and (rows := self._pop_trunk(table)) is not None:
                for row in reversed(rows):
                    if table.hashes[row]:  # placeholders leave with the last row that hung on them
                        self._evict(table, row, Reason.BELOW_TRUNK)
                self.take_leaves()

    def _here(self) -> list[Table]:
        return [table for table in self._offers if self._segment in table.candidates.queues]

    def first_worth(self) -> float | None:
        """Of the next leaf, as far as known without looking at it; None: there is none."""
        worths = (table.candidates.first_worth(self._segment) for table in self._here())
        return min((worth for worth in worths if worth is not None), default=None)

    def take_surplus(self) -> None:
        """To come first: rows are put where they belong. Copies beyond what is wanted: nobody misses these, but those of
        what is hot, and was used after the next leaf. What is left of the time goes to the leaves."""
        here = self._here()
        for table in here:
            table.candidates.promote_stale(self._now_s, self._chores)
            table.candidates.wake(self._segment, self._now_s, self._chores)
        with_copies = [table for table in here if table.layers.count]
        victim_use_s = math.inf
        if any(len(table.layers.hot) for table in with_copies):
            victim_use_s = min(
                table.candidates.sure_last_use_s(self._segment, self._now_s, self._budget) for table in here
            )
        for table in with_copies:
            if not self._wanting():
                return
            rows_max = self._budget.rows
            found = surplus_on(table, self._segment, self._staying, rows_max, victim_use_s)
            self._take_copies(table, found)

    def _take_copies(self, table: Table, cells: Sequence[tuple[int, int]]) -> None:
        for row, rank in cells:
            if not self._wanting() or not self._budget.spend():
                return
            place = next(one for one in table.places(row, rank) if one.segment == self._segment)
            name = (table.keyspace, rank, table.hashes[row])
            self._offers[table].add(self._segment, *name, place.slot, place.generation)
            table.drop_copy(row, rank, self._segment, self._now_s)
            self._count_copy(table, row, place.length)

    def _count_copy(self, table: Table, row: int, size_bytes: int) -> None:
        self.freed_bytes += size_bytes
        self._evictions.evicted(Reason.COPY, self._now_s - table.last_use_s[row])

    def take_leaves(self, worth_max: float | None = None) -> None:
        """In order of worth, of those worth no more than `worth_max`."""
        tables = self._here()
        most = math.inf if worth_max is None else worth_max

        def next_of(table: Table) -> float | None:
            worth = table.candidates.first_worth(self._segment)
            return None if worth is None or worth > most else worth

        def take(worth: float, index: int, rival: float | None) -> float | None:
            limit = worth_max if rival is None else min(rival, most)
            while self._wanting() and self._evict_next(tables[index], limit):
                pass
            return next_of(tables[index])

        worths = [(next_of(table), index) for index, table in enumerate(tables)]
        take_in_order([(worth, index) for worth, index in worths if worth is not None], self._wanting, take)

    def _wanting(self) -> bool:
        return self.freed_bytes < self._want_bytes and self._budget.rows > 0

    def _pop_leaf(self, table: Table, worth_max: float | None) -> int | None:
        return table.candidates.pop_leaf(self._segment, worth_max, self._now_s, self._budget)

    def _pop_dozing(self, table: Table) -> int | None:
        return table.candidates.pop_dozing(self._segment, self._now_s, self._budget)

    def _pop_trunk(self, table: Table) -> list[int] | None:
        return table.candidates.pop_trunk(self._segment, self._now_s, self._budget)

    def _evict_next(self, table: Table, worth_max: float | None) -> bool:
        """Evicts the next leaf, or hundreds at once where rows stand alone. False: there is none."""
        # Rows with further copies go one by one: where there are any, nobody looks at hundreds to find them all so.
        if (
            isinstance(table, FlatTable)
            and table.world == 1
            and not table.layers.count
            and self._evict_alike(table, worth_max)
        ):
            return True
        row = self._pop_leaf(table, worth_max)
        if row is not None:
            self._evict(table, row, Reason.LEAF)
        return row is not None

    def _evict_alike(self, table: FlatTable, worth_max: float | None) -> bool:
        """Whether candidates were looked at."""
        want_bytes = self._want_bytes - self.freed_bytes
        rows, others = table.candidates.pop_alike(
            self._segment, want_bytes, worth_max, self._now_s, self._budget
        )
        if len(rows):
            self.freed_bytes += int(table.bytes_of(rows).sum())
            self._evictions.evicted_all(Reason.LEAF, self._now_s - table.last_uses_s(rows))
            table.traffic.evicted_blocks += len(rows)
            table.discard_alike(rows, self._segment, self._offers[table])
        table.candidates.refile(others, self._segment, self._now_s)
        return len(rows) + len(others) > 0

    def _evict(self, table: Table, row: int, reason: Reason) -> None:
        if table.layers.count and spared(table, row, self._segment, self._staying, 1):
            self._count_copy(table, row, table.bytes_on(row, self._segment))
            give_up(table, row, self._segment, self._now_s, self._offers[table])
            return
        self.freed_bytes += table.bytes_on(row, self._segment)
        self._evictions.evicted(reason, self._now_s - table.last_use_s[row])
        table.traffic.evicted_blocks += 1
        table.policy.evicted(table.hashes[row], table.uses[row])
        if isinstance(table, ChainedTable):
            table.lift_use(row)
        table.discard(row, self._now_s, self._offers[table])


def next_age_ms(tables: Sequence[Table], segment: int, now_s: float) -> int:
    """Age of the segment's next victim; -1 where there is none. As far as known without looking at it."""
    ages = [
        now_s - last_use_s
        for table in tables
        if (last_use_s := table.candidates.next_last_use_s(segment)) is not None
    ]
    return int(max(ages) * 1000) if ages else -1
