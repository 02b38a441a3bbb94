"""Which master owns which shard, as far as this node knows, and since when (invariant I7). Pure: no socket.

The newest epoch of each shard is kept in the segment's head: a master that was deposed while this node was away can't
direct it when it is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moonpool.schemas.errors import ProtocolError
from moonpool.schemas.packed import U64
from moonpool.schemas.runs import SHARDS_MAX

Claim = tuple[int, int]
"""(shard, epoch)."""


class Change(NamedTuple):
    """What a master's claims change. `taken` from other masters, or from nobody, with their new epochs; `lost` are
    those that it no longer claims."""

    taken: list[Claim]
    lost: list[int]


class Fences:
    """`seen`: one word a shard, of the segment's head."""

    def __init__(self, seen: U64) -> None:
        self._seen = seen
        self._owners: dict[int, str] = {}
        self._owned: dict[str, list[int]] = {}
        """By owner, as far as somebody asked since the last change: every report asks."""

    def claimed(self, master: str, claims: Sequence[Claim]) -> Change:
        """A master says what it owns, all of it. Raises ProtocolError for numbers that can't be."""
        for shard, epoch in claims:
            if not (0 <= shard < SHARDS_MAX and 0 <= epoch < 1 << 63):
                raise ProtocolError(peer=master, reason=f"claims shard {shard} in epoch {epoch}")
        taken = [(shard, epoch) for shard, epoch in claims if self._is_news(master, shard, epoch)]
        for shard, epoch in taken:
            self._seen[shard] = epoch
            self._owners[shard] = master
            self._owned.clear()
        claimed = {shard for shard, _ in claims}
        lost = [shard for shard in self.owned_by(master) if shard not in claimed]
        self._leave(lost)
        return Change(taken, lost)

    def _is_news(self, master: str, shard: int, epoch: int) -> bool:
        seen = int(self._seen[shard])
        return epoch > seen or (epoch == seen and shard not in self._owners)

    def gone(self, master: str) -> list[int]:
        """The connection to a master is lost. Returns the shards that have no owner now."""
        lost = self.owned_by(master)
        self._leave(lost)
        return lost

    def release(self, master: str, shard: int) -> bool:
        """A master says that a shard isn't its own. Returns whether it was, as far as this node knew."""
        if self._owners.get(shard) != master:
            return False
        self._leave([shard])
        return True

    def _leave(self, shards: Iterable[int]) -> None:
        self._owned.clear()
        for shard in shards:
            del self._owners[shard]

    def fresh(self, shard: int, epoch: int) -> bool:
        """Whether orders of an owner of that epoch are to be obeyed."""
        return 0 <= shard < SHARDS_MAX and epoch >= int(self._seen[shard])

    def owner(self, shard: int) -> str | None:
        """The master that a shard reports to."""
        return self._owners.get(shard)

    def owned_by(self, master: str) -> list[int]:
        """The shards that report to a master. Not to be changed."""
        owned = self._owned.get(master)
        if owned is None:
            owned = self._owned[master] = [shard for shard, owner in self._owners.items() if owner == master]
        return owned

    @property
    def newest(self) -> int:
        """The newest epoch of any shard that was ever seen."""
        return int(self._seen.max())

    def validate(self) -> None:
        """Asserts that whoever owns a shard was seen to."""
        assert all(self._seen[shard] > 0 for shard in self._owners)
        for master, owned in self._owned.items():
            assert owned == [shard for shard, owner in self._owners.items() if owner == master]
