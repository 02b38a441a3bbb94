"""Which copies are made next: wants in, bounded orders out (no I/O, no clock).

Copies go where another host has room, and to a second node of a host only where no other host has any. They fill a node
up to the mark at which it stops evicting; beyond that only with blocks that were used after its next victim, or a copy
would push out what is worth more than itself, and be pushed out next. No tenant gets more copies than its quota holds,
except those that only move, off a node that is to be emptied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

BLOCKS_A_ORDER = 256
BYTES_A_ORDER = 16 << 20
ORDERS_A_NODE = 4
"""Under way, to a node and from a node."""

ORDER_S = 60.0
"""An order that nobody has answered for so long has failed."""

REFUSED_S = 5.0
"""A node that had no room after all is left alone so long."""

HOTTER_S = 60.0
"""A block that is to push out another one was used so much later."""

Cell = tuple[bytes, int, bytes]
"""(keyspace, rank, block hash)."""


class Reason(StrEnum):
    """Why a copy is made."""

    REPAIR = "repair"  # a block has fewer copies than it should
    DRAIN = "drain"  # its node is to be emptied
    WARM = "warm"  # somebody asked for it
    HOT = "hot"  # many ask for it


@dataclass(frozen=True, slots=True)
class Want:
    """One more copy. `holders`: segments that have one, `kept`: those of them that stay, `sources`: those that can be
    read. `to`: a segment; -1: any."""

    cell: Cell
    shard: int
    size_bytes: int
    last_use_s: float
    holders: Collection[int]
    kept: Collection[int]
    sources: Collection[int]
    reason: Reason
    to: int = -1
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Seat:
    """A node that takes copies. `room_bytes`: without evicting anything; `crowded_bytes`: at all. `victim_use_s`: when its
    next victim was last used."""

    index: int
    host: str
    room_bytes: int
    crowded_bytes: int
    victim_use_s: Callable[[], float]
    page_bytes: int


class Answer(IntEnum):
    """What became of a want."""

    ORDERED = 0
    LATER = 1  # those who could have enough to do
    NO_SPACE = 2
    NO_SOURCE = 3
    UNDER_WAY = 4
    OVER_QUOTA = 5


@dataclass(slots=True, eq=False)
class Order:
    """Copies of one keyspace, rank and shard from one segment to another. `read_from`: (slot, generation) at the source."""

    order_id: int
    source: int
    target: int
    reason: Reason
    shard: int
    until_s: float
    wants: list[Want] = field(default_factory=list)
    size_bytes: int = 0
    read_from: dict[Cell, tuple[int, int]] = field(default_factory=dict)

    def takes(self, want: Want) -> bool:
        """Whether it has room for one more."""
        return len(self.wants) < BLOCKS_A_ORDER and self.size_bytes + want.size_bytes <= BYTES_A_ORDER


class CopyPlanner:
    """`bytes_per_s`: of each node, as a source and as a target; a block larger than that still goes, alone."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._next_id = 0
        self.orders: dict[int, Order] = {}
        self._cells: dict[Cell, int] = {}
        self._spent: dict[int, float] = {}  # node -> bytes that its time has yet to pay for
        self._paid_s = 0.0
        self._refused_s: dict[int, float] = {}
        self._coming: Counter[int] = Counter()  # target -> bytes
        self._coming_of: Counter[str] = Counter()  # tenant -> bytes
        self._from: Counter[int] = Counter()  # source -> orders
        self._to: Counter[int] = Counter()  # target -> orders

    # ------------------------------------------------------------ orders

    def plan(
        self,
        wants: Sequence[Want],
        seats: Sequence[Seat],
        host_of: Callable[[int], str],
        now_s: float,
        left_bytes: Mapping[str, int],
    ) -> tuple[list[Order], list[Answer]]:
        """New orders, and an answer a want. `left_bytes`: what tenants with a quota may store beyond what they do."""
        self._pay(now_s)
        made: list[Order] = []
        answers = []
        for want in wants:
            answer = self._refusal(want, left_bytes) or self._plan_one(want, seats, host_of, now_s, made)
            answers.append(answer)
        return made, answers

    def _refusal(self, want: Want, left_bytes: Mapping[str, int]) -> Answer | None:
        """Why it isn't ordered, whoever has room for it."""
        if want.cell in self._cells:
            return Answer.UNDER_WAY
        if not want.sources:
            return Answer.NO_SOURCE
        left = left_bytes.get(want.tenant)
        if left is None or want.reason is Reason.DRAIN:
            return None
        return Answer.OVER_QUOTA if left < self._coming_of[want.tenant] + want.size_bytes else None

    def _plan_one(
        self,
        want: Want,
        seats: Sequence[Seat],
        host_of: Callable[[int], str],
        now_s: float,
        made: list[Order],
    ) -> Answer:
        fitting = [seat for seat in seats if self._fits(want, seat, now_s)]
        hosts = {host_of(index) for index in want.kept}
        elsewhere = [seat for seat in fitting if seat.host not in hosts]
        # Readers of one host need no second copy there.
        fitting = elsewhere if want.reason is Reason.HOT else elsewhere or fitting
        if not fitting:
            return Answer.NO_SPACE
        order = self._open_order(want, {seat.index for seat in fitting}, made)
        if order is None:
            ready = [seat for seat in fitting if self._affords(seat.index, self._to)]
            sources = [source for source in want.sources if self._affords(source, self._from)]
            if not ready or not sources:
                return Answer.LATER
            target = max(ready, key=lambda seat: (seat.room_bytes - self._coming[seat.index], seat.index))
            source = min(sources, key=lambda index: (self._from[index], index))
            order = self._new_order(want, source, target.index, now_s)
            made.append(order)
        self._add(order, want)
        return Answer.ORDERED

    def _open_order(self, want: Want, targets: Collection[int], made: Sequence[Order]) -> Order | None:
        """One of those just made that this may join."""
        for order in made:
            first = order.wants[0]
            alike = (first.cell[:2], first.shard, first.reason) == (want.cell[:2], want.shard, want.reason)
            between = order.source in want.sources and order.target in targets
            if (
                alike
                and between
                and order.takes(want)
                and self._paid(order.source)
                and self._paid(order.target)
            ):
                return order
        return None

    def _fits(self, want: Want, seat: Seat, now_s: float) -> bool:
        if seat.index in want.holders or want.size_bytes > seat.page_bytes:
            return False
        if (want.to >= 0 and seat.index != want.to) or self._refused_s.get(seat.index, 0.0) > now_s:
            return False
        left_bytes = seat.room_bytes - self._coming[seat.index]
        if left_bytes >= want.size_bytes:
            return True
        crowded_bytes = seat.crowded_bytes - self._coming[seat.index]
        return crowded_bytes >= want.size_bytes and want.last_use_s > seat.victim_use_s() + HOTTER_S

    def _affords(self, index: int, orders: Counter[int]) -> bool:
        return orders[index] < ORDERS_A_NODE and self._paid(index)

    def _paid(self, index: int) -> bool:
        return self._bytes_per_s > 0 and self._spent.get(index, 0.0) < self._bytes_per_s

    def _pay(self, now_s: float) -> None:
        passed_s, self._paid_s = max(0.0, now_s - self._paid_s), now_s
        left = {index: spent - passed_s * self._bytes_per_s for index, spent in self._spent.items()}
        self._spent = {index: spent for index, spent in left.items() if spent > 0}

    def _new_order(self, want: Want, source: int, target: int, now_s: float) -> Order:
        self._next_id += 1
        order = Order(self._next_id, source, target, want.reason, want.shard, now_s + ORDER_S)
        self.orders[order.order_id] = order
        self._from[source] += 1
        self._to[target] += 1
        return order

    def _add(self, order: Order, want: Want) -> None:
        order.wants.append(want)
        order.size_bytes += want.size_bytes
        self._cells[want.cell] = order.order_id
        self._coming[order.target] += want.size_bytes
        self._coming_of[want.tenant] += want.size_bytes
        for index in (order.source, order.target):
            self._spent[index] = self._spent.get(index, 0.0) + want.size_bytes

    # ------------------------------------------------------------ ends

    def ended(self, order_id: int, *, no_space_s: float | None = None) -> Order | None:
        """The order is over. `no_space_s`: its target said now that it has no room. None: it was over before."""
        order = self.orders.pop(order_id, None)
        if order is None:
            return None
        for want in order.wants:
            del self._cells[want.cell]
            self._coming_of[want.tenant] -= want.size_bytes
        self._coming[order.target] -= order.size_bytes
        self._from[order.source] -= 1
        self._to[order.target] -= 1
        self._coming, self._from, self._to = +self._coming, +self._from, +self._to
        self._coming_of = +self._coming_of
        if no_space_s is not None:
            self._refused_s[order.target] = no_space_s + REFUSED_S
        return order

    def expire(self, now_s: float) -> list[Order]:
        """Orders that have failed by now."""
        self._refused_s = {index: until_s for index, until_s in self._refused_s.items() if until_s > now_s}
        late = [order for order in self.orders.values() if order.until_s <= now_s]
        return [order for order in late if self.ended(order.order_id) is not None]

    def end_if(self, over: Callable[[Order], bool]) -> list[Order]:
        """Orders that nobody waits for any more."""
        gone = [order for order in self.orders.values() if over(order)]
        return [order for order in gone if self.ended(order.order_id) is not None]

    def order_of(self, cell: Cell) -> Order | None:
        """The one under way that copies it."""
        return self.orders.get(self._cells.get(cell, 0))

    @property
    def coming_bytes(self) -> int:
        """On their way, or soon."""
        return sum(self._coming.values())

    def validate(self) -> None:
        """Asserts that totals agree with the orders, and that all is bounded."""
        coming: Counter[int] = Counter()
        coming_of: Counter[str] = Counter()
        cells: dict[Cell, int] = {}
        for order in self.orders.values():
            assert order.wants and len(order.wants) <= BLOCKS_A_ORDER
            assert order.size_bytes == sum(want.size_bytes for want in order.wants)
            assert order.size_bytes <= BYTES_A_ORDER or len(order.wants) == 1
            coming[order.target] += order.size_bytes
            for want in order.wants:
                assert want.cell not in cells, "two copies of one cell under way"
                assert order.source in want.sources and order.target not in want.holders
                cells[want.cell] = order.order_id
                coming_of[want.tenant] += want.size_bytes
        assert cells == self._cells and +coming == +self._coming and +coming_of == +self._coming_of
        assert Counter(order.source for order in self.orders.values()) == +self._from
        assert Counter(order.target for order in self.orders.values()) == +self._to
        assert max([*self._from.values(), *self._to.values()], default=0) <= ORDERS_A_NODE
