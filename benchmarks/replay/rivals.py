"""What the pool's policy is measured against: S3-FIFO, and the optimum, which knows the future."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import takewhile

from moonpool.benchmarks.replay.trace import Trace

SMALL_SHARE = 0.1
FREQUENCY_MAX = 3
NEVER = 1 << 62


def s3fifo_hits(trace: Trace, capacity_blocks: int) -> int:
    """Prefix hits of S3-FIFO: a small queue for newcomers, a main one, and ghosts of those that left the small one.
    Blocks of a request enter deepest first, which suits it better: prefixes outlive what hangs on them."""
    cache = _S3Fifo(capacity_blocks)
    hits = 0
    for request in trace:
        hits += cache.prefix(request.hash_ids)
        for block in reversed(request.hash_ids):
            cache.use(block)
    return hits


class _S3Fifo:
    def __init__(self, capacity: int) -> None:
        self._small_max = max(1, round(capacity * SMALL_SHARE))
        self._capacity = capacity
        self._ghosts_max = capacity - self._small_max
        self._small: OrderedDict[int, int] = OrderedDict()  # block -> uses since it came
        self._main: OrderedDict[int, int] = OrderedDict()
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def prefix(self, blocks: list[int]) -> int:
        return sum(1 for _ in takewhile(lambda block: block in self._small or block in self._main, blocks))

    def use(self, block: int) -> None:
        for queue in (self._small, self._main):
            if block in queue:
                queue[block] = min(FREQUENCY_MAX, queue[block] + 1)
                return
        if len(self._small) + len(self._main) >= self._capacity:
            self._evict()
        if block in self._ghosts:
            del self._ghosts[block]
            self._main[block] = 0
        else:
            self._small[block] = 0

    def _evict(self) -> None:
        while len(self._small) >= self._small_max:
            block, uses = self._small.popitem(last=False)
            if uses <= 1:
                self._ghosts[block] = None
                if len(self._ghosts) > self._ghosts_max:
                    self._ghosts.popitem(last=False)
                return
            self._main[block] = 0
        while self._main:
            block, uses = self._main.popitem(last=False)
            if not uses:
                return
            self._main[block] = uses - 1
        self._small.popitem(last=False)


def optimum_hits(trace: Trace, capacity_blocks: int) -> int:
    """Prefix hits where the block whose next use is farthest always goes, the deepest first of equals. A block is
    used again no later than what hangs on it, so prefixes stay whole."""
    next_use = _next_uses(trace)
    held: dict[int, int] = {}  # block -> request that uses it next
    farthest: list[tuple[int, int, int]] = []
    hits = 0
    for request, uses in zip(trace, next_use, strict=True):
        hits += sum(1 for _ in takewhile(held.__contains__, request.hash_ids))
        for depth, (block, use) in enumerate(zip(request.hash_ids, uses, strict=True)):
            held[block] = use
            heapq.heappush(farthest, (-use, -depth, block))
        while len(held) > capacity_blocks:
            negative_use, _, block = heapq.heappop(farthest)
            if held.get(block) == -negative_use:  # else the entry is stale
                del held[block]
    return hits


def _next_uses(trace: Trace) -> list[list[int]]:
    """For each block of each request the number of the request that uses it next."""
    upcoming: dict[int, int] = {}
    uses: list[list[int]] = []
    for number in range(len(trace) - 1, -1, -1):
        blocks = trace[number].hash_ids
        uses.append([upcoming.get(block, NEVER) for block in blocks])
        upcoming.update(dict.fromkeys(blocks, number))
    uses.reverse()
    return uses
