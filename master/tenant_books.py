"""What each tenant stores with one master, and making room among a tenant's own blocks."""

from __future__ import annotations

from collections.abc import Iterable

from moonpool.master.drops import DropBatch
from moonpool.master.need import CHORE_ROWS_MAX, Room, take_in_order
from moonpool.master.shard_set import NEED_ROWS_MAX, ShardSet, StepOf
from moonpool.master.step import Step
from moonpool.master.table import Table
from moonpool.master.victims import Budget


class TenantBooks:
    """See Books (quotas.py). Of one request: `steps` gathers what nodes must drop for it."""

    def __init__(self, shards: ShardSet, now_s: float, step_of: StepOf) -> None:
        self._shards = shards
        self._now_s = now_s
        self._step_of = step_of
        self._budget, self._chores = Budget(NEED_ROWS_MAX), Budget(CHORE_ROWS_MAX)
        self.steps: dict[int, Step] = {}

    def stored_by(self, tenant: str) -> int:
        """See Books."""
        return self._shards.stored_by(tenant)

    def evict_own(self, tenant: str, want_bytes: int) -> int:
        """See Books. Of all nodes together the least worth goes first: room is wanted in the quota, not on one of them.
        Bounded: NEED_ROWS_MAX rows are looked at for one request, and CHORE_ROWS_MAX put where they belong."""
        offers: dict[Table, DropBatch] = {}
        for shard, tables in self._shards.tables_of(tenant).items():
            step = self.steps.get(shard) or self.steps.setdefault(shard, self._step_of(shard))
            offers.update(dict.fromkeys(tables, step.drops))
        before = _used(offers)
        evictions, staying = self._shards.evictions, next(iter(self.steps.values())).staying

        def wanting() -> int:
            return want_bytes - (before - _used(offers)) if self._budget.rows > 0 else 0

        def room_on(segment: int) -> Room:
            return Room(
                segment, wanting(), self._now_s, offers, self._budget, evictions, staying, self._chores
            )

        def take(worth: float, segment: int, rival: float | None) -> float | None:
            room = room_on(segment)
            room.take_leaves(rival)
            following = room.first_worth()
            stuck = following is not None and following <= worth and not room.freed_bytes
            return None if stuck else following

        segments = sorted({segment for table in offers for segment in table.copies})
        heads: list[tuple[float, int]] = []
        for segment in segments:
            room = room_on(segment)
            if wanting() > 0:
                room.take_surplus()
            if (worth := room.first_worth()) is not None:
                heads.append((worth, segment))
        take_in_order(heads, lambda: wanting() > 0, take)
        for segment in segments:  # what is leased, and what has others hanging on it
            if wanting() > 0:
                room_on(segment).make()
        return before - _used(offers)


def _used(tables: Iterable[Table]) -> int:
    return sum(table.used_bytes for table in tables)
