"""Promises to write: who was told GO keeps others from writing the same block for a while."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from moonpool.master.victim_queues import tick_after, tick_of

PROMISES_MAX = 1 << 18
Key = tuple[bytes, int, bytes]
"""(keyspace, rank, block hash)."""


class Promise(NamedTuple):
    """Bytes of one block that are expected on a segment, until then."""

    until_s: float
    segment: int
    size_bytes: int


class Promises:
    """At most `limit` at once. Each ends by its commit, by being abandoned, or by its time."""

    def __init__(self, limit: int = PROMISES_MAX) -> None:
        self._limit = limit
        self._held: dict[Key, Promise] = {}
        self._ends: dict[int, list[Key]] = {}  # tick -> keys that may end then
        self._ticks: list[int] = []  # heap of those ticks
        self.bytes_on: dict[int, int] = {}  # segment -> promised bytes
        self.bytes_of: Counter[bytes] = Counter()  # keyspace -> promised bytes

    def __len__(self) -> int:
        return len(self._held)

    def held(self, key: Key, now_s: float) -> bool:
        """Whether somebody holds it."""
        promise = self._held.get(key)
        return promise is not None and promise.until_s > now_s

    def room(self) -> int:
        """How many more may be given."""
        return self._limit - len(self._held)

    def give(self, keys: Sequence[Key], promise: Promise) -> None:
        """The same promise for each of several keys of one keyspace that nobody holds."""
        if not self._held.keys().isdisjoint(keys):
            for key in keys:
                self.end(key)  # one whose time is over, at most
        self._held.update(dict.fromkeys(keys, promise))
        size_bytes = len(keys) * promise.size_bytes
        self.bytes_on[promise.segment] = self.bytes_on.get(promise.segment, 0) + size_bytes
        if keys:
            self.bytes_of[keys[0][0]] += size_bytes
        tick = tick_after(promise.until_s)
        if tick not in self._ends:
            self._ends[tick] = []
            heapq.heappush(self._ticks, tick)
        self._ends[tick].extend(keys)

    def end(self, key: Key) -> None:
        """Committed or abandoned. One that nobody holds is no error."""
        promise = self._held.pop(key, None)
        if promise is None:
            return
        self._uncount(promise.segment, key[0], promise.size_bytes)

    def end_all(self, keys: Iterable[Key]) -> None:
        """Committed or abandoned, all of them."""
        pop, size_bytes = self._held.pop, dict[tuple[int, bytes], int]()
        for key in keys:
            promise = pop(key, None)
            if promise is not None:
                where = promise.segment, key[0]
                size_bytes[where] = size_bytes.get(where, 0) + promise.size_bytes
        for (segment, keyspace), ended in size_bytes.items():
            self._uncount(segment, keyspace, ended)

    def _uncount(self, segment: int, keyspace: bytes, size_bytes: int) -> None:
        self.bytes_on[segment] -= size_bytes
        if not self.bytes_on[segment]:
            del self.bytes_on[segment]
        self.bytes_of[keyspace] -= size_bytes
        if not self.bytes_of[keyspace]:
            del self.bytes_of[keyspace]

    def any_held(self, keys: Collection[Key]) -> bool:
        """Whether somebody may hold one of them; it may be over."""
        return not self._held.keys().isdisjoint(keys)

    def expire(self, now_s: float, keys_max: int) -> None:
        """Ends those whose time is over, after looking at `keys_max` at most. Those left are held no more, but take room."""
        while keys_max > 0 and self._ticks and self._ticks[0] <= tick_of(now_s):
            keys = self._ends[self._ticks[0]]
            due = keys[-keys_max:]
            del keys[-keys_max:]
            keys_max -= len(due)
            for key in due:
                promise = self._held.get(key)
                if promise is not None and promise.until_s <= now_s:
                    self.end(key)
            if not keys:
                del self._ends[heapq.heappop(self._ticks)]

    def validate(self) -> None:
        """Totals agree with what is held."""
        totals: dict[int, int] = {}
        of_keyspaces: Counter[bytes] = Counter()
        for key, promise in self._held.items():
            of_keyspaces[key[0]] += promise.size_bytes
            totals[promise.segment] = totals.get(promise.segment, 0) + promise.size_bytes
        assert totals == {segment: size for segment, size in self.bytes_on.items() if size}, "promised bytes"
        assert sorted(self._ticks) == sorted(self._ends) and all(self._ends.values())
        assert of_keyspaces == self.bytes_of, "promised bytes of keyspaces"
        assert len(self._held) <= self._limit, "more promises than allowed"
