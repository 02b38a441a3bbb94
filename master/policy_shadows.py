"""Shadows: what a pool of this size would hit under each candidate rule, on a sample of the blocks.

A block is in the sample where some bits of its hash are zero, so all uses of it are seen or none; a shadow holds
names only, and as large a part of them as the pool holds of all blocks. That is enough to compare rules while
they run, at a small part of the cost of the pool's own index (spatially hashed sampling).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from math import inf

AGE_WEIGHT = 1 / 256


class Shadow:
    """Names that one rule would keep: the next to go has the lowest last use + credit of its level of use."""

    def __init__(self, levels: int) -> None:
        self._level_of: dict[int, int] = {}  # each name held
        self._queues: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(levels)]
        self.age_s = 0.0
        """Age at which names leave, lately."""

    def __len__(self) -> int:
        return len(self._level_of)

    def hits(self, names: Sequence[int]) -> int:
        """How many leading names are held."""
        held = self._level_of
        for index, name in enumerate(names):
            if name not in held:
                return index
        return len(names)

    def use(self, names: Iterable[int], levels: Iterable[int], now_s: float) -> None:
        """A request has used these, given deepest first: in that order they are to leave."""
        held, queues = self._level_of, self._queues
        for name, level in zip(names, levels, strict=True):
            before = held.get(name)
            if before is not None:
                del queues[before][name]
            queues[level][name] = now_s
            held[name] = level

    def shrink(self, rows: int, credits_s: Sequence[float], now_s: float) -> None:
        """Lets names go until `rows` are held. `credits_s`: one a level."""
        held, queues = self._level_of, self._queues
        if len(held) <= rows:
            return
        worths = [_first_worth(queue, credit) for queue, credit in zip(queues, credits_s, strict=True)]
        while len(held) > rows:
            level = worths.index(min(worths))
            queue = queues[level]
            name, last_use_s = queue.popitem(last=False)
            del held[name]
            worths[level] = _first_worth(queue, credits_s[level])
            self.age_s += (now_s - last_use_s - self.age_s) * AGE_WEIGHT

    def keep_sampled(self, mask: int) -> None:
        """The sample has become thinner."""
        for name in [name for name in self._level_of if name & mask]:
            del self._queues[self._level_of.pop(name)][name]

    def validate(self) -> None:
        """Asserts that the queues hold each name once, in order of last use."""
        assert {name: level for level, queue in enumerate(self._queues) for name in queue} == self._level_of
        for queue in self._queues:
            assert list(queue.values()) == sorted(queue.values())


def _first_worth(queue: OrderedDict[int, float], credit_s: float) -> float:
    return next(iter(queue.values())) + credit_s if queue else inf
