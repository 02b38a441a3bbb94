"""The default policy: least recently used, with credit for earlier uses where that is proven to pay.

In traces of chats most blocks are never used again, and those that were are the likelier to be, the more often
they were. A row therefore counts as younger than it is by a credit that grows with the logarithm of its uses.
How much credit is right depends on the load and on the pool's size: none at all where whole sessions fit, several
times the age at which LRU evicts where few do. So shadows of the pool run LRU and two sizes of credit on a sample
of the blocks, and the one that has hit most lately rules. There is nothing to set.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from math import log2

import numpy as np

from moonpool.master.eviction import SAME_USE_S, USES_MAX
from moonpool.master.policy_ghosts import Ghosts
from moonpool.master.policy_shadows import Shadow
from moonpool.schemas.packed import U8, U64

LEVEL_OF_USES = (0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7)
"""Uses that differ little share a level, and with it a queue."""

USES_OF_LEVEL = (1.0, 2.0, 3.0, 4.0, 5.5, 7.5, 10.5, 14.0)

RULES = (0.0, 1.0, 4.0)
"""Credit of a second use, in ages at which LRU evicts. The first one is LRU itself."""

SHADOW_ROWS_MAX = 2048
HISTORY_FACTOR = 8
"""Names whose uses are remembered, as a multiple of what a shadow holds."""

MEMORY_FACTOR = 8
"""A hit counts half after that many times as many blocks as a shadow holds."""

LEAD = 1.01
"""By how much another rule must hit more before it takes over."""

WAITING_MAX = 64
"""Requests that wait to be studied; beyond that the oldest goes unseen."""

NAMES_MAX = 512
"""Of one request that are studied: some 300 us."""


class AdaptiveCredit:
    """An EvictionPolicy. Learns from chained requests only: from `asked`, later and in slices."""

    def __init__(self) -> None:
        self._ghosts = Ghosts()
        self._shadows = [Shadow(len(USES_OF_LEVEL)) for _ in RULES]
        self._hits = [0.0] * len(RULES)
        self._rule = 0
        self._mask = 0  # sampled are the names where these bits are zero
        self._shadow_rows: int | None = None  # None: the pool has never been full
        self._history: OrderedDict[int, tuple[int, float]] = (
            OrderedDict()
        )  # name -> uses, and when it was counted
        self._waiting: deque[tuple[U64, int, float]] = deque(maxlen=WAITING_MAX)
        self._credits_s = [0.0] * len(USES_OF_LEVEL)

    # ------------------------------------------------------------ what rows are worth

    @property
    def credits_s(self) -> Sequence[float]:
        """How much younger than they are rows of each level count."""
        return self._credits_s

    def level(self, uses: int) -> int:
        """The level of rows with so many uses."""
        return LEVEL_OF_USES[min(uses, USES_MAX)]

    def recall(self, block_hash: bytes) -> int:
        """Uses of the row of that name before it was evicted; 0 where nothing is known."""
        return self._ghosts.take(_name(block_hash))

    def recall_all(self, names: U64) -> U8:
        """The same of many."""
        return self._ghosts.take_all(names)

    def recall_packed(self, packed: bytes, hash_bytes: int) -> bytes:
        """See EvictionPolicy."""
        return self._ghosts.take_packed(packed, hash_bytes)

    # ------------------------------------------------------------ what happens

    @property
    def sample_mask(self) -> int:
        """See EvictionPolicy. None are wanted while as many wait as are kept: a sample costs its sender some 30 us."""
        return self._mask if len(self._waiting) < WAITING_MAX else -1

    def asked(self, names: U64, mask: int, now_s: float) -> None:
        """See EvictionPolicy."""
        self._waiting.append((names, mask, now_s))

    def evicted(self, block_hash: bytes, uses: int) -> None:
        """A row has left to make room."""
        self._ghosts.put(_name(block_hash), min(uses, USES_MAX))

    def evicted_all(self, names: U64, uses: U8) -> None:
        """The same of many."""
        self._ghosts.put_all(names, np.minimum(uses, USES_MAX))

    def full(self, rows: int) -> None:
        """Somebody needs room while the pool holds so many rows."""
        if self._mask and rows // (self._mask + 1) < SHADOW_ROWS_MAX // 16:
            self._start_over()  # fewer are kept than were asked for: the sample is too thin
        while rows // (self._mask + 1) > SHADOW_ROWS_MAX:
            self._thin_out()
        self._shadow_rows = rows // (self._mask + 1)
        self._ghosts.make_room(rows)

    def study(self) -> bool:
        """See EvictionPolicy."""
        if self._waiting:
            names, mask, now_s = self._waiting.popleft()
            if not mask & ~self._mask:  # else a sample thinner than ours, from before we started over
                self._study(self._sampled(names), now_s)
        return bool(self._waiting)

    # ------------------------------------------------------------ shadows

    def _sampled(self, names: U64) -> list[int]:
        sampled = names[(names & np.uint64(self._mask)) == 0]
        while (
            self._shadow_rows is None and len(sampled) > NAMES_MAX
        ):  # a full pool says itself how thin it must be
            self._thin_out()
            sampled = sampled[(sampled & np.uint64(self._mask)) == 0]
        found: list[int] = sampled.tolist()
        return found

    def _study(self, names: list[int], now_s: float) -> None:
        if not names:
            return
        deepest_first = names[::-1]
        levels = [LEVEL_OF_USES[self._count_use(name, now_s)] for name in deepest_first]
        rows = self._shadow_rows
        fading = 0.5 ** (len(names) / (MEMORY_FACTOR * max(1, rows or SHADOW_ROWS_MAX)))
        for index, shadow in enumerate(self._shadows):
            self._hits[index] = self._hits[index] * fading + shadow.hits(names)
            shadow.use(deepest_first, levels, now_s)
            if rows is not None:
                shadow.shrink(rows, self._credits_of(RULES[index]), now_s)
        history_max = HISTORY_FACTOR * (rows or SHADOW_ROWS_MAX)
        while len(self._history) > history_max:
            self._history.popitem(last=False)
        if rows is None:
            if len(self._shadows[0]) > SHADOW_ROWS_MAX:
                self._thin_out()
        else:
            self._choose()

    def _count_use(self, name: int, now_s: float) -> int:
        uses, counted_s = self._history.pop(name, (0, now_s - SAME_USE_S))
        if now_s - counted_s >= SAME_USE_S:
            uses, counted_s = min(uses + 1, USES_MAX), now_s
        self._history[name] = uses, counted_s
        return uses

    def _choose(self) -> None:
        best = max(range(len(RULES)), key=self._hits.__getitem__)  # of equals the one nearest to LRU
        if self._hits[best] > LEAD * self._hits[self._rule]:
            self._rule = best
        self._credits_s = self._credits_of(RULES[self._rule])

    def _credits_of(self, rule: float) -> list[float]:
        unit_s = rule * self._shadows[0].age_s
        return [unit_s * log_uses for log_uses in _LOG_USES]

    def _thin_out(self) -> None:
        self._mask = self._mask << 1 | 1
        for shadow in self._shadows:
            shadow.keep_sampled(self._mask)
        for name in [name for name in self._history if name & self._mask]:
            del self._history[name]

    def _start_over(self) -> None:
        self._shadows = [Shadow(len(USES_OF_LEVEL)) for _ in RULES]
        self._hits = [0.0] * len(RULES)
        self._rule = self._mask = 0
        self._history.clear()

    # ------------------------------------------------------------ facts

    def facts(self) -> dict[str, int | float | str]:
        """For people."""
        return {"eviction_rule": RULES[self._rule], "lru_age_s": round(self._shadows[0].age_s, 1)}

    def validate(self) -> None:
        """Asserts every invariant."""
        for shadow in self._shadows:
            shadow.validate()
            assert self._shadow_rows is None or len(shadow) <= max(self._shadow_rows, SHADOW_ROWS_MAX)
        assert all(not name & self._mask for name in self._history)
        assert self._credits_s[0] == 0 and self._credits_s == sorted(self._credits_s)


_LOG_USES = [log2(uses) for uses in USES_OF_LEVEL]


def _name(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[:8], "little")
