"""Copies of blocks: how many there should be, and orders to nodes until there are.

Puts stay one copy and one round trip. Everything here happens afterwards, in bounded pieces a tick: whoever has too few
copies is looked for (seeker.py), what is made next is decided (planner.py), and nodes are told to read from each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from moonpool.master.columns import NO_ROW, NO_SEGMENT
from moonpool.master.copies import COPIES_MAX, Place
from moonpool.master.lookups import mean_copy_bytes
from moonpool.master.node import Node
from moonpool.master.nodes import Nodes
from moonpool.master.replicas.arrivals import admitted
from moonpool.master.replicas.drains import DrainBook
from moonpool.master.replicas.hot import HotCopies
from moonpool.master.replicas.planner import Answer, CopyPlanner, Order, Reason, Seat, Want
from moonpool.master.replicas.seats import Seats
from moonpool.master.replicas.seeker import Fates, Seeker, Short
from moonpool.master.replicas.wishes import Wish, Wishes, cells_short
from moonpool.master.shard_set import ShardSet, StepOf
from moonpool.master.step import Step, check_count
from moonpool.master.table import Table
from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown
from moonpool.schemas.keyspace import Kind
from moonpool.schemas.messages import (
    Copied,
    CopyOrder,
    Done,
    DrainProgress,
    Drains,
    Entries,
    NodeState,
    Op,
    ReportBad,
    SetReplicas,
    Status,
    Warm,
    Warmed,
)
from moonpool.schemas.packed import count_of, join_hashes, pack_u32, pack_u64

ROWS_A_TICK = 65536
WANTS_A_TICK = 256
SPARE_A_TICK = 2048
Push = tuple[bytes, CopyOrder]
LeftOf = Callable[[str], int | None]
"""Bytes that a tenant may still store here; None: it has no quota."""


class Replication:
    """Pure, as the core is whose shards and nodes these are."""

    def __init__(
        self, shards: ShardSet, nodes: Nodes, left_of: LeftOf, bytes_per_s: int, hot_hits_per_min: int
    ) -> None:
        self._shards = shards
        self._nodes = nodes
        self._left_of = left_of
        self._seats = Seats(shards, nodes)
        self._planner = CopyPlanner(bytes_per_s)
        self._seeker = Seeker()
        self._on = bytes_per_s > 0
        self._drains = DrainBook()
        self._wishes = Wishes()
        self._hot = HotCopies(shards, self._wishes, hot_hits_per_min)
        self.counts: Counter[tuple[str, Reason]] = Counter()
        """(ordered, done, failed or bytes; reason)."""

    # ------------------------------------------------------------ what is wanted

    def set(self, message: SetReplicas) -> Done:
        """How many copies the blocks of a keyspace should have. Raises KeyspaceUnknown, InvalidParams."""
        if not 1 <= message.replicas <= COPIES_MAX:
            raise InvalidParams(field="replicas", value=message.replicas, allowed=f"1 to {COPIES_MAX}")
        if message.keyspace not in self._shards.specs_by_digest:
            raise KeyspaceUnknown(keyspace=message.keyspace.hex())
        return Done(int(self.recorded(message.keyspace, message.replicas)))

    def recorded(self, keyspace: bytes, replicas: int) -> bool:
        """The same of what is in the store, whether or not the keyspace is here yet. Returns whether that is new."""
        return self._shards.want_replicas(keyspace, replicas)

    def warm(self, message: Warm) -> Warmed:
        """Orders copies ahead of use. Raises KeyspaceUnknown, InvalidParams, NotFound."""
        spec = self._shards.specs_by_digest.get(message.keyspace)
        if spec is None:
            raise KeyspaceUnknown(keyspace=message.keyspace.hex())
        check_count(count_of(message.hashes, spec.hash_bytes, "hashes"), "hashes")
        to = self._nodes.named(message.node).index if message.node else -1
        kept = self._fates(self._leaving()).kept
        return self._wishes.warm(message, self._shards.changing(), kept, to)

    # ------------------------------------------------------------ time

    def tick(self, now_s: float, step_of: StepOf) -> tuple[list[Push], list[Step]]:
        """Orders, and what nodes must drop that are to be emptied."""
        for order in self._planner.expire(now_s):
            self.counts["failed", order.reason] += len(order.wants)
        leaving = self._leaving()
        self._drains.keep([node.index for node in leaving])
        if not self._on:
            return [], []
        cold = self._hot.look(self._nodes.staying, self._capacity_bytes, now_s)
        if not (leaving or self._shards.replicated or self._wishes or cold):
            return [], []
        fates = self._fates(leaving)
        cycles = self._seeker.cycles
        self._seeker.begin(self._shards.changing(), [node.index for node in leaving], now_s)
        if self._seeker.cycles > cycles:
            self._drains.cycle_ended()
        self._seeker.look(ROWS_A_TICK, fates, self._shards.is_current)
        pushes = self._order_some(now_s, fates) + self._grant_some(now_s, fates)
        return pushes, self._let_go(now_s, fates, step_of) + self._cool(cold, now_s, fates, step_of)

    def _capacity_bytes(self) -> int:
        nodes = self._nodes.all()
        return sum(node.info.capacity_bytes for node in nodes if self._nodes.staying[node.index])

    def _leaving(self) -> list[Node]:
        return [node for node in self._nodes.draining() if node.state is not NodeState.LOST]

    def _fates(self, leaving: Sequence[Node]) -> Fates:
        kept, gone = np.zeros(NO_SEGMENT + 1, dtype=np.bool_), np.zeros(NO_SEGMENT + 1, dtype=np.bool_)
        kept[[node.index for node in self._nodes.all() if node.state is not NodeState.LOST]] = True
        gone[[node.index for node in leaving]] = True
        kept &= ~gone
        return Fates(kept, gone, int(np.count_nonzero(self._nodes.staying)))

    def _order_some(self, now_s: float, fates: Fates) -> list[Push]:
        some = [self._seeker.short.popleft() for _ in range(min(WANTS_A_TICK, len(self._seeker.short)))]
        wanted = [(one, want) for one in some if (want := self._short_of(one, fates)) is not None]
        if not wanted:
            return []
        orders, answers = self._plan([want for _, want in wanted], self._seats.all(), now_s)
        again = [one for (one, _), answer in zip(wanted, answers, strict=True) if answer is Answer.LATER]
        self._seeker.short.extendleft(reversed(again))
        for (_, want), answer in zip(wanted, answers, strict=True):
            if answer is Answer.NO_SPACE and want.reason is Reason.DRAIN:
                self._drains.found_no_space([index for index in want.holders if fates.leaving[index]])
        return [self._push(order) for order in orders]

    def _short_of(self, short: Short, fates: Fates) -> Want | None:
        """As things are now. None: it has enough copies."""
        shard, table, row, rank = short
        if not self._shards.is_current(shard, table) or not table.hashes[row]:
            return None
        segments = table.layers.segments(row * table.world + rank)
        if sum(bool(fates.kept[one]) for one in segments) >= fates.wanted(table):
            return None
        leaves = any(fates.leaving[index] for index in segments)
        return self._want(short, fates, Reason.DRAIN if leaves else Reason.REPAIR)

    def _want(self, short: Short, fates: Fates, reason: Reason, to: int = -1) -> Want | None:
        """None: it should not be copied."""
        shard, table, row, rank = short
        if not self._shards.is_current(shard, table) or not table.sound(row, rank):
            return None
        places = table.places(row, rank)
        holders = [place.segment for place in places]
        kept = [index for index in holders if fates.kept[index]]
        if len(holders) >= COPIES_MAX:
            return None
        return Want(
            (table.keyspace, rank, table.hashes[row]),
            shard,
            places[0].length,
            table.last_use_s[row],
            holders,
            kept,
            [index for index in holders if self._nodes.usable[index]],
            reason,
            to,
            table.spec.tenant,
        )

    def _plan(self, wants: list[Want], seats: list[Seat], now_s: float) -> tuple[list[Order], list[Answer]]:
        left = {tenant: self._left_of(tenant) for tenant in {want.tenant for want in wants}}
        limited = {tenant: left_bytes for tenant, left_bytes in left.items() if left_bytes is not None}
        return self._planner.plan(wants, seats, self._seats.host_of, now_s, limited)

    def _grant_some(self, now_s: float, fates: Fates) -> list[Push]:
        """What somebody has asked for. What finds no room, or is more than a quota holds, is given up."""
        wishes = self._wishes.take(WANTS_A_TICK)
        if not wishes:
            return []
        tables = {(shard, table.keyspace): table for shard, table in self._shards.changing()}
        wanted = [
            (wish, want)
            for wish in wishes
            if (table := tables.get(wish[:2])) is not None
            and (want := self._want_of(wish, table, fates)) is not None
        ]
        if not wanted:
            return []
        seats = self._seats.all({want.to for _, want in wanted if want.to >= 0})
        orders, answers = self._plan([want for _, want in wanted], seats, now_s)
        later = (Answer.LATER, Answer.UNDER_WAY)
        self._wishes.again([one for (one, _), answer in zip(wanted, answers, strict=True) if answer in later])
        given_up = (Answer.NO_SPACE, Answer.NO_SOURCE, Answer.OVER_QUOTA)
        for (wish, _), answer in zip(wanted, answers, strict=True):
            self.counts["failed", wish.reason] += answer in given_up
        return [self._push(order) for order in orders]

    def _want_of(self, wish: Wish, table: Table, fates: Fates) -> Want | None:
        """As things are now. None: there is nothing to do."""
        row = table.rows.get(wish.block_hash)
        copies = min(wish.copies, fates.seats)
        if row == NO_ROW or (row, wish.rank) not in cells_short(table, [row], fates.kept, copies, wish.to):
            return None
        return self._want(Short(wish.shard, table, row, wish.rank), fates, wish.reason, wish.to)

    def _let_go(self, now_s: float, fates: Fates, step_of: StepOf) -> list[Step]:
        """Copies on nodes that are to be emptied go where enough others are kept."""
        steps: dict[int, Step] = {}
        for _ in range(min(SPARE_A_TICK, len(self._seeker.spare))):
            shard, table, row, rank = self._seeker.spare.popleft()
            if not self._shards.is_current(shard, table) or not table.hashes[row]:
                continue
            step = steps.get(shard) or steps.setdefault(shard, step_of(shard))
            places = table.places(row, rank) if table.sound(row, rank) else []
            kept = sum(bool(fates.kept[place.segment]) for place in places)
            if kept < fates.wanted(table):
                continue
            for place in places:
                if fates.leaving[place.segment]:
                    _drop(table, row, rank, place, now_s, step)
                    self._drains.left(place.segment, place.length)
        return list(steps.values())

    def _cool(
        self, cold: Sequence[tuple[Short, int]], now_s: float, fates: Fates, step_of: StepOf
    ) -> list[Step]:
        """The newest copies of each go, where there are more than are wanted, and no more than were made for its heat."""
        steps: dict[int, Step] = {}
        for (shard, table, row, rank), more in cold:
            places = [place for place in table.places(row, rank) if fates.kept[place.segment]]
            surplus = min(more, len(places) - fates.wanted(table))
            if surplus <= 0:
                continue
            step = steps.get(shard) or steps.setdefault(shard, step_of(shard))
            for place in places[-surplus:]:
                _drop(table, row, rank, place, now_s, step)
        return list(steps.values())

    def _push(self, order: Order) -> Push:
        self.counts["ordered", order.reason] += len(order.wants)
        source = self._nodes.at(order.source)
        assert source is not None
        keyspace, rank, _ = order.wants[0].cell
        table = self._shards.get(order.shard).table(keyspace)
        hashes = [want.cell[2] for want in order.wants]
        rows = table.rows.get_all(hashes)
        places = [
            next(place for place in table.places(row, rank) if place.segment == order.source) for row in rows
        ]
        order.read_from = {
            want.cell: (place.slot, place.generation) for want, place in zip(order.wants, places, strict=True)
        }
        chained = table.spec.kind is Kind.CHAINED
        nobody = bytes(table.spec.hash_bytes)
        message = CopyOrder(
            order.order_id,
            self._shards.epoch(order.shard),
            table.spec,
            source.info,
            rank,
            pack_u32([table.position_of(row) for row in rows]) if chained else b"",
            join_hashes(hashes),
            join_hashes(table.parent_of(row) or nobody for row in rows) if chained else b"",
            pack_u32([place.slot for place in places]),
            pack_u64([place.generation for place in places]),
            pack_u64([place.length for place in places]),
            order.shard,
        )
        return self._nodes.names[order.target], message

    # ------------------------------------------------------------ answers

    def admitted(self, op: Op, node: Node, step: Step) -> Op:
        """A report's op without copies whose source has gone meanwhile. Of an inventory nothing is known."""
        if isinstance(op, Entries) and op.copied and not step.naming:
            return admitted(op, self._planner, self._shards.get(step.shard), node.index, step)
        return op

    def copied(self, node: Node, shard: int, op: Copied, now_s: float, step: Step) -> None:
        """A node says what became of an order. One that it was not given is no news."""
        order = self._planner.orders.get(op.order)
        if order is None or (order.target, order.shard) != (node.index, shard):
            return
        statuses = (
            op.statuses if len(op.statuses) == len(order.wants) else bytes(len(order.wants) * [Status.FAILED])
        )
        self._planner.ended(op.order, no_space_s=now_s if Status.NO_SPACE in statuses else None)
        for want, status in zip(order.wants, statuses, strict=True):
            self.counts["done" if status == Status.OK else "failed", order.reason] += 1
            if status == Status.OK:
                self.counts["bytes", order.reason] += want.size_bytes
            elif status == Status.CORRUPT:
                self._report_bad(order, want, step)

    def _report_bad(self, order: Order, want: Want, step: Step) -> None:
        keyspace, rank, block_hash = want.cell
        index = self._shards.get(order.shard)
        table = index.table(keyspace)
        row = table.rows.get(block_hash)
        for place in table.places(row, rank) if row >= 0 and table.sound(row, rank) else ():
            if place.segment == order.source:
                name = self._nodes.names[order.source]
                bad = ReportBad(keyspace, rank, block_hash, name, place.slot, place.generation, order.shard)
                index.ask(bad, step)

    def disown(self, shard: int) -> None:
        """The shard is another master's."""
        self._planner.end_if(lambda order: order.shard == shard)

    def lose(self, index: int) -> None:
        """A node is gone: neither answers nor is read any more."""
        self._fail(lambda order: index in (order.source, order.target))

    def announced(self, node: Node) -> None:
        """It is here anew: what it was told to copy before it has given up."""
        self._fail(lambda order: order.target == node.index)

    def _fail(self, over: Callable[[Order], bool]) -> None:
        for order in self._planner.end_if(over):
            self.counts["failed", order.reason] += len(order.wants)

    # ------------------------------------------------------------ facts

    def drains(self) -> Drains:
        """How far nodes are that are to be emptied."""
        found: dict[str, DrainProgress] = {}
        for node in self._leaving():
            tables = [table for _, table in self._shards.tables() if node.index in table.copies]
            before = found.get(node.info.node) or DrainProgress(node.info.node, 0, 0, 0, 0, 0)
            found[node.info.node] = DrainProgress(
                before.node,
                before.moved + self._drains.moved[node.index],
                before.moved_bytes + self._drains.moved_bytes[node.index],
                before.left + sum(table.copies[node.index] for table in tables),
                before.left_bytes
                + round(sum(table.copies[node.index] * mean_copy_bytes(table) for table in tables)),
                before.no_space + self._drains.no_space[node.index],
            )
        return Drains([found[name] for name in sorted(found)])

    def facts(self) -> dict[str, int]:
        """What is under way, and what was."""
        drains = self.drains().nodes
        return {
            "copy_orders": len(self._planner.orders),
            "copies_coming_bytes": self._planner.coming_bytes,
            "copies_short": len(self._seeker.short),
            "copies_wished": len(self._wishes),
            "hot_prefixes": len(self._hot),
            "drain_moved_copies": sum(one.moved for one in drains),
            "drain_left_copies": sum(one.left for one in drains),
            "drain_no_space_copies": sum(one.no_space for one in drains),
        }

    def validate(self) -> None:
        """Asserts every invariant."""
        self._planner.validate()
        self._seeker.validate()
        self._hot.validate()


def _drop(table: Table, row: int, rank: int, place: Place, now_s: float, step: Step) -> None:
    """One copy goes: from the index at once, and its node is told."""
    step.drops.add(place.segment, table.keyspace, rank, table.hashes[row], place.slot, place.generation)
    table.drop_copy(row, rank, place.segment, now_s)
