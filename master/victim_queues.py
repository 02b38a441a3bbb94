"""The queues that victims are taken from.

A queue orders rows by a coarse score and never looks at one twice without cause. Entries are only hints:
whoever takes a row checks that it still is a leaf, unprotected and as old as its entry said, and puts it
back where it belongs. So nothing is searched for when a row is touched, leased or gets a child.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from operator import add
from typing import Protocol

import numpy as np

from moonpool.master.eviction import EvictionPolicy
from moonpool.master.open_entries import F64, OpenEntries
from moonpool.schemas.packed import I64, distinct

ROWS_A_BUNDLE = 4096
TICKS_A_SECOND = 10
"""Resolution at which ends of leases are waited for."""


_NO_DEPTHS: F64 = np.zeros(0, dtype=np.float64)
_NO_ROWS: I64 = np.zeros(0, dtype=np.int64)


class Depths(Protocol):
    """Of rows that were last used in the same second, the one with the greatest depth goes first."""

    def depth_of(self, row: int) -> float:
        """Of one row."""
        ...

    def depths_of(self, rows: I64) -> F64:
        """Of many."""
        ...


class RowCalendar:
    """Rows in buckets by an integer key; 4 bytes an entry, duplicates allowed."""

    def __init__(self) -> None:
        self._buckets: dict[int, deque[array[int]]] = {}
        self._keys: list[int] = []
        self.entries = 0

    def push(self, key: int, row: int) -> None:
        """Adds an entry."""
        bundles = self._buckets.get(key)
        if bundles is None:
            bundles = self._buckets[key] = deque((array("I"),))
            heapq.heappush(self._keys, key)
        elif len(bundles[-1]) == ROWS_A_BUNDLE:
            bundles.append(array("I"))
        bundles[-1].append(row)
        self.entries += 1

    def push_all(self, key: int, rows: Sequence[int]) -> None:
        """Adds an entry for each of one row or more."""
        self.push(key, rows[0])
        bundles = self._buckets[key]
        first = 1
        while first < len(rows):
            room = ROWS_A_BUNDLE - len(bundles[-1])
            if not room:
                bundles.append(array("I"))
                continue
            bundles[-1].extend(array("I", rows[first : first + room]))
            first += room
        self.entries += len(rows) - 1

    def first_key(self) -> int | None:
        """The lowest key."""
        return self._keys[0] if self._keys else None

    def take(self) -> array[int]:
        """Up to ROWS_A_BUNDLE rows of the lowest key; there must be one."""
        key = self._keys[0]
        bundles = self._buckets[key]
        bundle = bundles.popleft()
        if not bundles:
            del self._buckets[key]
            heapq.heappop(self._keys)
        self.entries -= len(bundle)
        return bundle

    def pop(self) -> int:
        """One row of the lowest key; there must be one."""
        bundles = self._buckets[self._keys[0]]
        row = bundles[-1].pop()
        self.entries -= 1
        if not bundles[-1]:
            bundles.pop()
            if not bundles:
                del self._buckets[heapq.heappop(self._keys)]
        return row

    def peek(self) -> int:
        """Some row of the lowest key; there must be one."""
        return self._buckets[self._keys[0]][0][0]

    def rows(self) -> set[int]:
        """Every row that has an entry. For validation: a scan."""
        return {row for bundles in self._buckets.values() for bundle in bundles for row in bundle}


class OrderedRows:
    """A calendar of scores whose lowest bundle is open and in order, so that the deepest row leaves first."""

    def __init__(self, depths: Depths) -> None:
        self._depth_of, self._depths_of = depths.depth_of, depths.depths_of
        self._calendar = RowCalendar()
        self._open = OpenEntries(_NO_DEPTHS, _NO_ROWS)  # by -depth
        self._open_score = 0

    def push(self, score: int, row: int) -> None:
        """Adds an entry."""
        if score == self._open_score and self._open:
            self._open.push(-self._depth_of(row), row)
        else:
            self._calendar.push(score, row)

    def push_all(self, score: int, rows: Sequence[int]) -> None:
        """Adds an entry for each of one row or more."""
        if self._open and score == self._open_score:
            for row in rows:
                self.push(score, row)
        else:
            self._calendar.push_all(score, rows)

    def first_score(self) -> int | None:
        """Score of the next entry."""
        key = self._calendar.first_key()
        if self._open and (key is None or self._open_score <= key):
            return self._open_score
        return key

    def pop(self) -> tuple[int, int] | None:
        """The next (score, row)."""
        if not self._open_lowest():
            return None
        while True:
            depth, row = self._open.pop()
            if depth == (now := -self._depth_of(row)):
                return self._open_score, row
            self._open.push(now, row)  # the row's number was used again

    def _open_lowest(self) -> bool:
        """Whether there is an entry; those of the lowest score are open then."""
        key = self._calendar.first_key()
        if self._open and (key is None or key >= self._open_score):
            return True
        if key is None:
            return False
        for row in self._open:
            self._calendar.push(self._open_score, row)
        rows = distinct(np.array(self._calendar.take(), dtype=np.int64))
        self._open = OpenEntries(-self._depths_of(rows), rows)
        self._open_score = key
        return True

    def next_entries(self, count: int) -> tuple[int, F64, I64] | None:
        """Score of the next entry, and up to `count` (1 or more) entries of that score in order: -depth and row of
        each. They stay: see `drop_entries`."""
        if not self._open_lowest():
            return None
        depths, rows = self._open.sorted(count)
        if not np.array_equal(-self._depths_of(rows), depths):  # numbers of some rows were used again
            _, every = self._open.sorted(len(self._open))
            self._open = OpenEntries(-self._depths_of(every), every)
            depths, rows = self._open.sorted(count)
        return self._open_score, depths, rows

    def drop_entries(self, count: int) -> None:
        """Takes the first so many that next_entries named."""
        self._open.drop(count)

    def peek(self) -> int | None:
        """The row that pop would most likely give."""
        key = self._calendar.first_key()
        if self._open and (key is None or self._open_score <= key):
            return self._open.first()[1]
        return None if key is None else self._calendar.peek()

    def rows(self) -> set[int]:
        """Every row that has an entry. For validation: a scan."""
        return self._calendar.rows() | set(self._open)

    @property
    def entries(self) -> int:
        """Entries, stale ones too."""
        return self._calendar.entries + len(self._open)


class LeveledRows:
    """Ordered rows a level: the next is the one with the lowest score + credit, so a credit can change without
    any entry being looked at."""

    def __init__(self, depths: Depths, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._levels = [OrderedRows(depths) for _ in policy.credits_s]
        self._first_scores = [inf] * len(self._levels)

    def push(self, level: int, score: int, row: int) -> None:
        """Adds an entry."""
        self._levels[level].push(score, row)
        self._first_scores[level] = min(self._first_scores[level], score)

    def push_all(self, level: int, score: int, rows: Sequence[int]) -> None:
        """Adds an entry for each of one row or more."""
        self._levels[level].push_all(score, rows)
        self._first_scores[level] = min(self._first_scores[level], score)

    def first(self) -> tuple[float, int] | None:
        """Worth and level of the next entry."""
        worths = list(map(add, self._first_scores, self._policy.credits_s))
        worth = min(worths)
        return None if worth == inf else (worth, worths.index(worth))

    def pop(self, level: int) -> tuple[int, int]:
        """The next (score, row) of a level; there must be one."""
        rows = self._levels[level]
        popped = rows.pop()
        assert popped is not None
        first = rows.first_score()
        self._first_scores[level] = inf if first is None else first
        return popped

    def next_entries(self, level: int, count: int) -> tuple[int, F64, I64] | None:
        """See OrderedRows."""
        return self._levels[level].next_entries(count)

    def drop_entries(self, level: int, count: int) -> None:
        """See OrderedRows."""
        rows = self._levels[level]
        rows.drop_entries(count)
        first = rows.first_score()
        self._first_scores[level] = inf if first is None else first

    def peek(self) -> int | None:
        """The row that goes next, most likely."""
        first = self.first()
        return None if first is None else self._levels[first[1]].peek()

    def rows(self) -> set[int]:
        """Every row that has an entry. For validation: a scan."""
        return {row for level in self._levels for row in level.rows()}

    @property
    def entries(self) -> int:
        """Entries, stale ones too."""
        return sum(level.entries for level in self._levels)


class VictimQueue:
    """Candidates of one (table, segment). Every unpinned leaf with a copy on the segment has an entry in one of
    `awake`, `asleep`, `dozing`; every row with children has one there or in `trunks`."""

    def __init__(self, depths: Depths, policy: EvictionPolicy) -> None:
        self.awake = LeveledRows(depths, policy)
        self.trunks = OrderedRows(depths)  # rows that had children when they were looked at
        self.asleep = RowCalendar()  # leased leaves, by the tick at which their lease ends
        self.dozing = RowCalendar()  # the same of presence leases, which yield to a put in need

    def sleep(self, row: int, until_s: float) -> None:
        """Looks at the row again when its lease has ended."""
        self.asleep.push(tick_after(until_s), row)

    def doze(self, row: int, until_s: float) -> None:
        """The same, unless a put in need comes first."""
        self.dozing.push(tick_after(until_s), row)

    def rows(self) -> set[int]:
        """Every row that will be looked at as a leaf."""
        return self.awake.rows() | self.asleep.rows() | self.dozing.rows()

    @property
    def entries(self) -> int:
        """Entries, stale ones too."""
        return self.awake.entries + self.trunks.entries + self.asleep.entries + self.dozing.entries


def tick_after(until_s: float) -> int:
    """The first tick at which a lease until then is over."""
    return int(until_s * TICKS_A_SECOND) + 1


def tick_of(now_s: float) -> int:
    """The tick that `now_s` lies in."""
    return int(now_s * TICKS_A_SECOND)


class UnreadyRows:
    """Rows in the order in which they became (or were born) unready, to be looked at once after a time.

    `still`: those of some rows that are unready since exactly that second. The others' entries are stale: each time
    a bundle is full two others are sifted in turn, so that they don't pile up.
    """

    def __init__(self, still: Callable[[array[int], int], array[int]]) -> None:
        self._still = still
        self._seconds: deque[tuple[int, array[int]]] = deque()
        self._next_sifted = 0

    def note(self, row: int, now_s: float) -> None:
        """The row is unready as of now."""
        second = int(now_s)
        full = bool(self._seconds) and len(self._seconds[-1][1]) == ROWS_A_BUNDLE
        if full or not self._seconds or self._seconds[-1][0] < second:
            self._seconds.append((second, array("I")))
        self._seconds[-1][1].append(row)
        if full:
            self._sift()
            self._sift()

    def note_all(self, rows: Sequence[int], now_s: float) -> None:
        """The same of many rows."""
        second, first = int(now_s), 0
        while first < len(rows):
            room = ROWS_A_BUNDLE - len(self._seconds[-1][1]) if self._seconds else 0
            if room <= 0 or self._seconds[-1][0] < second:
                self.note(rows[first], now_s)  # into a bundle of its own
                first += 1
                continue
            self._seconds[-1][1].extend(array("I", rows[first : first + room]))
            first += room

    def _sift(self) -> None:
        if self._next_sifted >= len(self._seconds) - 1:  # the last one is being filled
            self._next_sifted = 0
        second, rows = self._seconds[self._next_sifted]
        left = self._still(rows, second)
        if left:
            self._seconds[self._next_sifted] = (second, left)
            self._next_sifted += 1
        else:
            del self._seconds[self._next_sifted]

    def due(self, before_s: float) -> array[int] | None:
        """Takes a bundle of rows noted in seconds that ended by `before_s`."""
        if self._seconds and self._seconds[0][0] + 1 <= before_s:
            self._next_sifted = max(0, self._next_sifted - 1)
            return self._seconds.popleft()[1]
        return None

    @property
    def entries(self) -> int:
        """Entries, stale ones too."""
        return sum(len(rows) for _, rows in self._seconds)
