"""Which removals a segment's node has obeyed, kept in the segment's head.

A master that has not heard the confirmation asks again, and so does the next owner of the shard, perhaps long after
the same blocks were put again. Those are not meant: the predicate of an order is obeyed once.
"""

from __future__ import annotations

from moonpool.schemas.packed import U64

Order = tuple[int, int]
"""See Drop."""

NEVER_AGAIN = (0, 0)


class Obeyed:
    """`words`: a row an order (shard, epoch, drop id, serial), the oldest of which is written over. A row counts once
    its serial is there, which is written last."""

    def __init__(self, words: U64) -> None:
        self._words = words
        rows = sorted(words[words[:, 3] > 0].tolist(), key=lambda row: row[3])
        self._serial: int = rows[-1][3] if rows else 0
        self._orders: dict[tuple[int, Order], int] = {
            (shard, (epoch, drop_id)): serial for shard, epoch, drop_id, serial in rows
        }

    def add(self, shard: int, order: Order) -> None:
        """It is done. Idempotent."""
        if order == NEVER_AGAIN or (shard, order) in self._orders:
            return
        if len(self._orders) >= len(self._words):
            del self._orders[next(iter(self._orders))]
        self._serial += 1
        row = self._words[self._serial % len(self._words)]
        row[3] = 0
        row[:3] = shard, *order
        row[3] = self._serial
        self._orders[shard, order] = self._serial

    def __contains__(self, key: tuple[int, Order]) -> bool:
        return key in self._orders

    def of(self, shard: int) -> list[Order]:
        """Those of one shard, oldest first."""
        return [order for where, order in self._orders if where == shard]

    def validate(self) -> None:
        """Asserts that the head says the same."""
        held = {(row[0], (row[1], row[2])): row[3] for row in self._words.tolist() if row[3]}
        assert held == self._orders
        assert list(self._orders.values()) == sorted(self._orders.values())
