"""How far nodes are that are to be emptied (no I/O, no clock)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection


class DrainBook:
    """By index of the node. What finds no room is counted over one cycle of passes, and told when that has ended."""

    def __init__(self) -> None:
        self.moved: Counter[int] = Counter()
        self.moved_bytes: Counter[int] = Counter()
        self.no_space: Counter[int] = Counter()
        self._without: Counter[int] = Counter()

    def left(self, index: int, size_bytes: int) -> None:
        """A copy has gone from the node: enough others are kept."""
        self.moved[index] += 1
        self.moved_bytes[index] += size_bytes

    def found_no_space(self, indices: Collection[int]) -> None:
        """For a block that these hold there is no room elsewhere."""
        self._without.update(indices)

    def cycle_ended(self) -> None:
        """All that is short of copies has been looked at since the last one."""
        self.no_space, self._without = self._without, Counter()

    def keep(self, draining: Collection[int]) -> None:
        """The others are in use again, or gone."""
        for counter in (self.moved, self.moved_bytes, self.no_space, self._without):
            for index in [index for index in counter if index not in draining]:
                del counter[index]
