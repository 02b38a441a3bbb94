"""What stands in the simulated cluster: engines' own caches, and things that do one piece of work at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile


class PrefixCache:
    """An engine's own cache of blocks: least recently used, deepest first."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def prefix(self, chain: Sequence[bytes]) -> int:
        """Leading blocks that are there."""
        return sum(1 for _ in takewhile(self._blocks.__contains__, chain))

    def use(self, chain: Sequence[bytes]) -> None:
        """All of these are there now, and young."""
        for name in reversed(chain):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


class Station:
    """Something that does one thing after the other: a processor, a network card."""

    def __init__(self) -> None:
        self.free_s = 0.0
        self.busy_s = 0.0

    def take(self, now_s: float, work_s: float) -> float:
        """When work that comes now is done."""
        self.free_s = max(now_s, self.free_s) + work_s
        self.busy_s += work_s
        return self.free_s


class Desk(Station):
    """A master's processor: matches first, other requests next, and what nobody waits for when there is time."""

    def __init__(self, slice_s: float) -> None:
        super().__init__()
        self._slice_s = slice_s
        self._first_free_s = 0.0
        self._waiting_s = 0.0
        self._seen_s = 0.0

    def first(self, now_s: float, work_s: float) -> float:
        """A match: it waits for those before it, and for a slice of other work that has just begun."""
        self._drain(now_s)
        start_s = max(now_s, self._first_free_s)
        if start_s == now_s:
            start_s += min(self._slice_s, max(0.0, self.free_s - now_s) + self._waiting_s)
        self._first_free_s = start_s + work_s
        super().take(now_s, work_s)
        return self._first_free_s

    def take(self, now_s: float, work_s: float) -> float:
        """Another request that somebody waits for."""
        self._drain(now_s)
        return super().take(now_s, work_s)

    def later(self, now_s: float, work_s: float) -> None:
        """Work that nobody waits for."""
        self._drain(now_s)
        self._waiting_s += work_s
        self.busy_s += work_s

    def _drain(self, now_s: float) -> None:
        idle_s = now_s - max(self._seen_s, self.free_s)
        self._waiting_s = max(0.0, self._waiting_s - max(0.0, idle_s))
        self._seen_s = max(self._seen_s, now_s)
