"""A set whose members leave by themselves: blocks seen in the pool lately, blocks that failed to load lately."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice


class ExpiringSet:
    """Members of equal lifetime, oldest first, bounded: what is over the bound leaves early."""

    def __init__(self, lifetime_s: float, size_max: int) -> None:
        self._lifetime_s = lifetime_s
        self._size_max = size_max
        self._until: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def add(self, members: Iterable[bytes], now_s: float) -> None:
        """Adds, or begins the lifetime again."""
        until = now_s + self._lifetime_s
        for member in members:
            self._until.pop(member, None)
            self._until[member] = until
        surplus = len(self._until) - self._size_max
        for member in list(islice(self._until, max(0, surplus))):
            del self._until[member]

    def discard(self, members: Iterable[bytes]) -> None:
        """Forgets these at once."""
        for member in members:
            self._until.pop(member, None)

    def holds(self, member: bytes, now_s: float) -> bool:
        """Whether it is in the set and still fresh."""
        until = self._until.get(member)
        return until is not None and until > now_s

    def expire(self, now_s: float) -> None:
        """Forgets what is over."""
        for member, until in list(self._until.items()):
            if until > now_s:
                break
            del self._until[member]

    def clear(self) -> None:
        """Forgets all."""
        self._until.clear()

    def validate(self) -> None:
        """Bounded, and oldest first."""
        times = list(self._until.values())
        assert len(times) <= self._size_max
        assert times == sorted(times)
