"""Promises to write: who was told GO keeps others from writing the same block for a while."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, TypeVar

from moonpool.master.victim_queues import tick_after, tick_of
from moonpool.schemas.packed import join_hashes, split_hashes

T = TypeVar("T")

PROMISES_MAX = 1 << 18


class Rank(NamedTuple):
    """What a block hash names a row's part in."""

    keyspace: bytes
    rank: int


@dataclass(slots=True, eq=False)
class Promise:
    """Some blocks of one rank, expected on a segment until then. `left`: how many nobody has written or given up;
    `packed`: hashes of those that have not been looked at since its time was over, empty where none are left."""

    of: Rank
    until_s: float
    segment: int
    size_bytes: int  # of each
    packed: bytes
    hash_bytes: int
    left: int


class Promises:
    """For at most `limit` blocks at once. Each ends by its commit, by being abandoned, or by its time."""

    def __init__(self, limit: int = PROMISES_MAX) -> None:
        self._limit = limit
        self._count = 0
        self._held: dict[Rank, dict[bytes, Promise]] = {}
        self._ends: dict[int, list[Promise]] = {}  # tick -> those that may end then
        self._ticks: list[int] = []  # heap of those ticks
        self.bytes_on: Counter[int] = Counter()  # segment -> promised bytes
        self.bytes_of: Counter[bytes] = Counter()  # keyspace -> promised bytes

    def __len__(self) -> int:
        return self._count

    def held(self, of: Rank, block_hash: bytes, now_s: float) -> bool:
        """Whether somebody holds it."""
        promise = self._held.get(of, {}).get(block_hash)
        return promise is not None and promise.until_s > now_s

    def any_held(self, of: Rank, hashes: Collection[bytes]) -> bool:
        """Whether somebody may hold one of them; it may be over."""
        held = self._held.get(of)
        return held is not None and not held.keys().isdisjoint(hashes)

    def room(self) -> int:
        """How many more may be given."""
        return self._limit - self._count

    def give(self, of: Rank, hashes: Sequence[bytes], until_s: float, segment: int, size_bytes: int) -> None:
        """One for several blocks, each named once, that nobody holds."""
        if not hashes:
            return
        if self.any_held(of, hashes):
            self.end_all(of, hashes)  # of those whose time is over
        promise = Promise(of, until_s, segment, size_bytes, join_hashes(hashes), len(hashes[0]), len(hashes))
        self._held.setdefault(of, {}).update(dict.fromkeys(hashes, promise))
        self._count += len(hashes)
        self.bytes_on[segment] += len(hashes) * size_bytes
        self.bytes_of[of.keyspace] += len(hashes) * size_bytes
        tick = tick_after(until_s)
        if tick not in self._ends:
            self._ends[tick] = []
            heapq.heappush(self._ticks, tick)
        self._ends[tick].append(promise)

    def end_all(self, of: Rank, hashes: Collection[bytes]) -> None:
        """Committed or abandoned. One that nobody holds is no error."""
        held = self._held.get(of)
        if held is None:
            return
        for promise, count in Counter(map(held.pop, hashes, repeat(None))).items():
            if promise is not None:
                self._let_go(promise, count)
        if not held:
            del self._held[of]

    def abandon(self, of: Rank, hashes: Collection[bytes], now_s: float) -> frozenset[int]:
        """Their writer gave up. Returns the segments that it was to write to."""
        held = self._held.get(of, {})
        promises = map(held.get, hashes)
        segments = frozenset(one.segment for one in promises if one is not None and one.until_s > now_s)
        self.end_all(of, hashes)
        return segments

    def _let_go(self, promise: Promise, count: int) -> None:
        promise.left -= count
        if not promise.left:
            promise.packed = b""
        self._count -= count
        _subtract(self.bytes_on, promise.segment, count * promise.size_bytes)
        _subtract(self.bytes_of, promise.of.keyspace, count * promise.size_bytes)

    def expire(self, now_s: float, keys_max: int) -> None:
        """Ends those whose time is over, after looking at `keys_max` blocks at most. Those left are held no more, but
        take room."""
        while keys_max > 0 and self._ticks and self._ticks[0] <= tick_of(now_s):
            promises = self._ends[self._ticks[0]]
            promise = promises[-1]
            due = split_hashes(promise.packed[-keys_max * promise.hash_bytes :], promise.hash_bytes)
            keys_max -= max(len(due), 1)
            held = self._held.get(promise.of, {})
            over = [block_hash for block_hash in due if held.get(block_hash) is promise]
            promise.packed = promise.packed[: len(promise.packed) - len(due) * promise.hash_bytes]
            self.end_all(promise.of, over)
            if not promise.packed:
                promises.pop()
            if not promises:
                del self._ends[heapq.heappop(self._ticks)]

    def validate(self) -> None:
        """Totals agree with what is held."""
        on_segments: Counter[int] = Counter()
        of_keyspaces: Counter[bytes] = Counter()
        left: Counter[Promise] = Counter()
        for of, held in self._held.items():
            assert held, "an empty rank"
            for promise in held.values():
                assert promise.of == of
                left[promise] += 1
                on_segments[promise.segment] += promise.size_bytes
                of_keyspaces[of.keyspace] += promise.size_bytes
        assert on_segments == self.bytes_on, "promised bytes"
        assert of_keyspaces == self.bytes_of, "promised bytes of keyspaces"
        assert sorted(self._ticks) == sorted(self._ends) and all(self._ends.values())
        assert all(promise.left == count for promise, count in left.items())
        waiting = [promise for promises in self._ends.values() for promise in promises]
        assert left.keys() <= set(waiting) and len(set(waiting)) == len(waiting), "promises without an end"
        assert all(bool(promise.packed) <= bool(promise.left) for promise in waiting)
        assert sum(left.values()) == self._count <= self._limit, "more promises than allowed"


def _subtract(sizes: Counter[T], key: T, size_bytes: int) -> None:
    sizes[key] -= size_bytes
    if not sizes[key]:
        del sizes[key]
