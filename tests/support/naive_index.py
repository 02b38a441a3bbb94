"""The index in the plainest words: dicts by hash, and readiness found by walking parents. The model in tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from support.paper_cluster import Slot

UNREADY_S = 60.0


@dataclass
class NaiveRow:
    """A block that has a copy, or on which one that has hangs."""

    last_use_s: float
    unready_since_s: float
    copies: dict[int, tuple[str, Slot]] = field(default_factory=dict)
    doubts: set[int] = field(default_factory=set)
    lease_s: float = 0.0
    soft_s: float = 0.0
    pin_s: float = 0.0
    was_ready: bool = False
    linked: bool = False  # a row that never had a copy hasn't told what it hangs on


class NaiveIndex:
    """`parents`: the parent of each block within its run, where it has one."""

    def __init__(self, world: int, parents: dict[bytes, bytes], positions: dict[bytes, int]) -> None:
        self.world = world
        self.parents = parents
        self.positions = positions
        self.rows: dict[bytes, NaiveRow] = {}

    # ------------------------------------------------------------ facts

    def complete(self, block_hash: bytes) -> bool:
        row = self.rows.get(block_hash)
        return row is not None and len(row.copies) == self.world and not row.doubts

    def ready(self, block_hash: bytes) -> bool:
        parent = self.parents.get(block_hash)
        return self.complete(block_hash) and (parent is None or self.ready(parent))

    def live(self, block_hash: bytes, usable: Callable[[str], bool]) -> bool:
        return all(usable(segment) for segment, _ in self.rows[block_hash].copies.values())

    def children(self, block_hash: bytes) -> list[bytes]:
        return [h for h, row in self.rows.items() if row.linked and self.parents.get(h) == block_hash]

    def subtree(self, block_hash: bytes) -> list[bytes]:
        if block_hash not in self.rows:
            return []
        return [block_hash, *(row for child in self.children(block_hash) for row in self.subtree(child))]

    def stale(self, block_hash: bytes, now_s: float) -> bool:
        return not self.ready(block_hash) and self.rows[block_hash].unready_since_s + UNREADY_S <= now_s

    def protected(self, block_hash: bytes, now_s: float) -> bool:
        row = self.rows[block_hash]
        return row.lease_s > now_s or row.pin_s > now_s

    def on(self, segment: str) -> list[bytes]:
        return [h for h, row in self.rows.items() if any(s == segment for s, _ in row.copies.values())]

    def evictable(self, segment: str, now_s: float) -> list[bytes]:
        """Unprotected leaves with a copy on the segment."""
        return [h for h in self.on(segment) if not self.children(h) and not self.protected(h, now_s)]

    def order(self, block_hash: bytes, now_s: float) -> tuple[int, int]:
        """The lowest go first."""
        age = -1 if self.stale(block_hash, now_s) else int(self.rows[block_hash].last_use_s)
        return age, -self.positions[block_hash]

    # ------------------------------------------------------------ changes

    def add(self, block_hash: bytes, rank: int, segment: str, slot: Slot, now_s: float) -> None:
        for name in (block_hash, self.parents.get(block_hash)):
            if name is not None and name not in self.rows:
                self.rows[name] = NaiveRow(now_s, now_s)
        self.rows[block_hash].copies[rank] = (segment, slot)
        self.rows[block_hash].linked = True

    def drop(self, block_hash: bytes, rank: int, now_s: float) -> None:
        row = self.rows[block_hash]
        del row.copies[rank]
        row.doubts.discard(rank)
        self.settle(now_s)

    def remove(self, hashes: Iterable[bytes], now_s: float) -> None:
        for block_hash in hashes:
            del self.rows[block_hash]
        self.settle(now_s)

    def lift(self, block_hash: bytes) -> None:
        """Recency goes to the nearest ancestor that stays when this row goes."""
        row, parent = self.rows[block_hash], self.parents.get(block_hash)
        if parent in self.rows and row.linked:
            above = self.rows[parent]
            above.last_use_s = max(above.last_use_s, row.last_use_s)
            if not above.copies and self.children(parent) == [block_hash]:
                self.lift(parent)

    def settle(self, now_s: float) -> None:
        """Rows without copies on which nothing hangs leave; since when the others are unready is noted."""
        while empty := [h for h, row in self.rows.items() if not row.copies and not self.children(h)]:
            for block_hash in empty:
                del self.rows[block_hash]
        for block_hash, row in self.rows.items():
            ready = self.ready(block_hash)
            if row.was_ready and not ready:
                row.unready_since_s = now_s
            row.was_ready = ready

    def expire_pins(self, now_s: float) -> None:
        for row in self.rows.values():
            if row.pin_s != math.inf and row.pin_s <= now_s:
                row.pin_s = 0.0
