"""One shard of the index: a table a keyspace, promises, and what must be done to all of them.

`ShardIndex` is the seam: the core sees nothing else of a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from moonpool.master import lookups, puts, removals
from moonpool.master.bad_reports import BadReports
from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW, view
from moonpool.master.demand import Demand
from moonpool.master.eviction import EvictionPolicy
from moonpool.master.flat import FlatTable
from moonpool.master.kv_feed import KvFeed
from moonpool.master.promises import Promises, Rank
from moonpool.master.reports import adopt, apply_op, check_op
from moonpool.master.shard_facts import shard_facts
from moonpool.master.step import CheckOrder, Step, check_count
from moonpool.master.sweeps import Sweeps
from moonpool.master.table import Table
from moonpool.master.validation import validate_table
from moonpool.master.victims import Budget
from moonpool.schemas.errors import KeyspaceUnknown
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Clear,
    Describe,
    DescribeKeyspace,
    Done,
    Entries,
    Locate,
    Match,
    Matched,
    Message,
    Op,
    Pin,
    Presence,
    Probe,
    Probed,
    PutAbandon,
    PutStart,
    PutStarted,
    Remove,
    Removed,
    Renew,
    ReportBad,
    Unpin,
)
from moonpool.schemas.packed import split_hashes

ROWS_A_TICK = 4096


class ShardIndex(Protocol):
    """All that a core does with a shard. Raises MoonpoolError for refusals, before anything has changed."""

    tables: dict[bytes, Table]
    """By keyspace. Others read them only."""
    demand: Demand

    @property
    def promised(self) -> Mapping[int, int]:
        """Bytes that writers were promised, by segment."""
        ...

    @property
    def promised_to(self) -> Mapping[bytes, int]:
        """The same by keyspace."""
        ...

    def register(self, spec: KeyspaceSpec) -> None:
        """Makes a keyspace known."""
        ...

    def unregister(self, keyspace: bytes) -> None:
        """Forgets one without rows."""
        ...

    def rows_of(self, keyspace: bytes) -> int:
        """How many rows it has, or will have again."""
        ...

    def table(self, keyspace: bytes) -> Table:
        """Raises KeyspaceUnknown."""
        ...

    def ask(self, message: Message, step: Step) -> Message:
        """A client's request."""
        ...

    def check(self, op: Op) -> None:
        """Raises where `apply` would."""
        ...

    def apply(self, segment: int, op: Op, step: Step) -> None:
        """An op of a segment's report stream."""
        ...

    def adopt(self, segment: int, op: Entries, now_s: float) -> int | None:
        """`check` and `apply` of new rows of a flat keyspace, which leaves nothing for the nodes. Returns their payload
        bytes; None, and nothing has changed, where it isn't that."""
        ...

    def start_inventory(self, segment: int) -> None:
        """A new stream begins."""
        ...

    def end_inventory(self, segment: int, step: Step) -> None:
        """The stream has named all that the segment holds: the rest goes, in slices."""
        ...

    def offers(self) -> Iterable[Table]:
        """Whose rows may be evicted."""
        ...

    def lose(self, segment: int) -> None:
        """The segment's copies go, in slices."""
        ...

    def holds(self, segment: int) -> bool:
        """Whether a lost segment's copies are not all gone yet."""
        ...

    def forget(self, segment: int) -> None:
        """The index number will be given to another segment."""
        ...

    def tick(self, step: Step) -> None:
        """What time brings: expiries, slices of slow work."""
        ...

    def sweep(self, now_s: float) -> bool:
        """A slice of what a lost segment leaves, or an inventory's end. Returns whether there was anything to do."""
        ...

    def remove_some(self, step: Step) -> None:
        """A slice of the removals that were too much for one request."""
        ...

    def validate(self) -> None:
        """Asserts every invariant. A scan: for tests."""
        ...

    def specs(self) -> list[KeyspaceSpec]:
        """Of every keyspace."""
        ...

    def facts(self) -> dict[str, int]:
        """Sizes and counters."""
        ...


class Shard:
    """The one implementation of ShardIndex."""

    def __init__(self, policy: EvictionPolicy, feed: KvFeed | None = None) -> None:
        self.tables: dict[bytes, Table] = {}
        self.promises = Promises()
        self.demand = Demand()
        self._policy = policy
        self._feed = feed
        self._bad_reports = BadReports()
        self._sweeps = Sweeps()
        self._handlers: dict[type[Message], Callable[[Table, Any, Step], Message]] = {
            Probe: lookups.probe,
            Match: lookups.match,
            Presence: lookups.presence,
            Locate: lookups.locate,
            Renew: lookups.renew,
            Describe: lookups.describe,
            DescribeKeyspace: lookups.describe_keyspace,
            Remove: removals.remove,
            PutAbandon: self._put_abandon,
            ReportBad: self._report_bad,
            Clear: self._clear,
            Pin: self._pin,
            Unpin: self._unpin,
        }

    @property
    def promised(self) -> Mapping[int, int]:
        """See ShardIndex."""
        return self.promises.bytes_on

    @property
    def promised_to(self) -> Mapping[bytes, int]:
        """See ShardIndex."""
        return self.promises.bytes_of

    def register(self, spec: KeyspaceSpec) -> None:
        """See ShardIndex."""
        self.tables[spec.digest()] = self._make_table(spec)

    def unregister(self, keyspace: bytes) -> None:
        """See ShardIndex."""
        del self.tables[keyspace]

    def rows_of(self, keyspace: bytes) -> int:
        """See ShardIndex."""
        table = self.tables[keyspace]
        return len(table) + len(table.kept_pins)

    def _make_table(self, spec: KeyspaceSpec) -> Table:
        if spec.kind is Kind.FLAT:
            return FlatTable(spec, self._policy)
        table = ChainedTable(spec, self._policy)
        table.feed = self._feed
        return table

    def table(self, keyspace: bytes) -> Table:
        """Raises KeyspaceUnknown."""
        table = self.tables.get(keyspace)
        if table is None:
            raise KeyspaceUnknown(keyspace=keyspace.hex())
        return table

    # ------------------------------------------------------------ clients

    def ask(self, message: Message, step: Step) -> Message:
        """See ShardIndex."""
        if isinstance(message, PutStart):
            return self._put_start(message, step)
        handler = self._handlers[type(message)]
        table = self.table(message.keyspace)  # type: ignore[attr-defined]
        reply = handler(table, message, step)
        if isinstance(message, Probe) and isinstance(reply, Probed):
            self.demand.probed(table, message, reply, step.now_s)
        elif isinstance(reply, Matched):  # of the gap that a probe has left
            table.traffic.hit_blocks += sum(reply.ready)
        return reply

    def _put_start(self, message: PutStart, step: Step) -> PutStarted:
        tables = [self.table(item.keyspace) for item in message.items]
        hashes = zip(message.items, tables, strict=True)
        check_count(sum(len(item.hashes) // table.spec.hash_bytes for item, table in hashes), "items")
        for item, table in zip(message.items, tables, strict=True):
            puts.check_item(table, item, message.promise_ms)
        answers: list[bytes] = []
        segments: list[bytes] = []
        for item, table in zip(message.items, tables, strict=True):
            answer, segment = puts.start_item(table, item, self.promises, message.promise_ms, step)
            answers.append(answer)
            segments.append(b"" if segment is None else step.names[segment])
        return PutStarted(answers, segments)

    def _put_abandon(self, table: Table, message: PutAbandon, step: Step) -> Done:
        hashes = split_hashes(message.hashes, table.spec.hash_bytes)
        step.failed = self.promises.abandon(Rank(message.keyspace, message.rank), hashes, step.now_s)
        return Done()

    def _report_bad(self, table: Table, message: ReportBad, step: Step) -> Done:
        row = table.rows.get(message.block_hash) if message.block_hash else NO_ROW
        if row == NO_ROW or not 0 <= message.rank < table.world:
            return Done(0)
        named = (message.segment, message.slot, message.generation)
        places = table.places(row, message.rank) if table.sound(row, message.rank) else []
        place = next((one for one in places if (step.names[one.segment], *one[1:3]) == named), None)
        if place is None:
            return Done(0)
        if not self._bad_reports.admit((message.keyspace, message.rank, message.block_hash), step.now_s):
            return Done(0)
        if len(places) > 1:  # readers have another one: this one is made anew rather than looked at
            step.drops.add(place.segment, message.keyspace, message.rank, message.block_hash, *place[1:3])
            table.drop_copy(row, message.rank, place.segment, step.now_s)
            return Done(1)
        table.doubt(row, message.rank, step.now_s)
        order = CheckOrder(
            place.segment, message.keyspace, message.rank, message.block_hash, place.slot, place.generation
        )
        step.checks.append(order)
        return Done(1)

    def _clear(self, table: Table, message: Clear, step: Step) -> Removed:
        refused = removals.clear(table, message, step)
        if refused is not None:
            return refused
        count = int(np.count_nonzero(view(table.committed))) if len(table) else 0
        if message.dry_run:
            return Removed(count, 0, [])
        fresh = self.tables[message.keyspace] = self._make_table(table.spec)
        fresh.traffic, fresh.replicas = table.traffic, table.replicas
        if table.feed is not None:
            table.feed.cleared(table)
        return Removed(count, 0, [])

    def _pin(self, table: Table, message: Pin, step: Step) -> Done:
        # One tenant's pins leave no less room for another's.
        same = (other for other in self.tables.values() if other.spec.tenant == table.spec.tenant)
        pins = sum(len(other.pins) for other in same)
        return Done(removals.pin(table, message, pins, step))

    def _unpin(self, table: Table, message: Unpin, step: Step) -> Done:
        return Done(removals.unpin(table, message, step))

    # ------------------------------------------------------------ nodes

    def check(self, op: Op) -> None:
        """See ShardIndex."""
        check_op(self.table, op)

    def apply(self, segment: int, op: Op, step: Step) -> None:
        """See ShardIndex."""
        apply_op(self.table, self.promises, self._bad_reports, segment, op, step)

    def adopt(self, segment: int, op: Entries, now_s: float) -> int | None:
        """See ShardIndex."""
        return adopt(self.table(op.keyspace), self.promises, segment, op, now_s)

    def start_inventory(self, segment: int) -> None:
        """See ShardIndex."""
        self._sweeps.cancel(segment)
        for table in self.tables.values():
            table.start_inventory(segment)

    def end_inventory(self, segment: int, step: Step) -> None:
        """See ShardIndex. What is little is done at once."""
        self._sweeps.start(segment, self.tables.values(), unnamed=True)
        self._sweeps.run(self.tables, step.now_s)

    def offers(self) -> Iterable[Table]:
        """See ShardIndex."""
        return self.tables.values()

    def lose(self, segment: int) -> None:
        """See ShardIndex."""
        self._sweeps.cancel(segment)
        for table in self.tables.values():
            table.end_inventory(segment)
        self._sweeps.start(segment, self.tables.values(), unnamed=False)

    def holds(self, segment: int) -> bool:
        """See ShardIndex."""
        return any(segment in table.copies for table in self.tables.values())

    def forget(self, segment: int) -> None:
        """See ShardIndex."""
        self._sweeps.cancel(segment)
        for table in self.tables.values():
            table.forget(segment)

    # ------------------------------------------------------------ time

    def tick(self, step: Step) -> None:
        """See ShardIndex."""
        rows_max = max(1, round(ROWS_A_TICK * step.share))
        self.promises.expire(step.now_s, rows_max)
        for key in self._bad_reports.overdue(step.now_s):
            self._drop_doubted(*key, step)
        rebuilt = Budget(rows_max)
        for table in self.tables.values():
            for row in table.pins.expire(step.now_s, rows_max):
                table.candidates.add_everywhere(row, step.now_s)
            table.candidates.promote_stale(step.now_s, Budget(rows_max))
            table.candidates.rebuild(step.now_s, rebuilt)
            if isinstance(table, ChainedTable):
                table.settle_some(rows_max)

    def sweep(self, now_s: float) -> bool:
        """See ShardIndex."""
        return self._sweeps.run(self.tables, now_s)

    def remove_some(self, step: Step) -> None:
        """See ShardIndex."""
        for table in self.tables.values():
            if table.doomed:  # of one table a tick: all its drops fit one message
                removals.remove_some(
                    table, min(removals.SLICE_ROWS, removals.COPIES_MAX // table.world), step
                )
                return

    def _drop_doubted(self, keyspace: bytes, rank: int, block_hash: bytes, step: Step) -> None:
        """The node has not said whether the copy is good: it goes."""
        table = self.tables.get(keyspace)
        row = table.rows.get(block_hash) if table is not None else NO_ROW
        if table is None or row == NO_ROW or not table.doubted.get(row, 0) >> rank & 1:
            return
        place = table.place(row, rank)
        step.drops.add(place.segment, keyspace, rank, block_hash, place.slot, place.generation)
        table.drop_copy(row, rank, place.segment, step.now_s)

    def validate(self) -> None:
        """See ShardIndex."""
        self.promises.validate()
        self.demand.validate()
        for table in self.tables.values():
            validate_table(table)

    def specs(self) -> list[KeyspaceSpec]:
        """See ShardIndex."""
        return [table.spec for table in self.tables.values()]

    def facts(self) -> dict[str, int]:
        """See ShardIndex."""
        return shard_facts(self.tables.values(), self.promises, self._bad_reports, self._sweeps)
