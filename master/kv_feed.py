"""What becomes readable in the pool and what leaves it, as the KV events that routers read (no I/O).

Only chained keyspaces: a router wants to know prefixes. A block is stored when all its ranks are there and it hangs
on nothing that is missing (I1), and removed as soon as that ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from moonpool.master.columns import view
from moonpool.master.table import Table

WAITING_MAX = 1 << 17
"""Blocks whose events wait for the next tick; more are forgotten, and a resync follows."""

RESYNC_ROWS = 1 << 14
"""Rows looked at in one tick of a resync."""

RESYNC_PAUSE_S = 30.0
TABLES_LEFT_MAX = 1024

Hash = bytes | int


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks of one chain, each the parent of the next. The pool knows no tokens: `token_ids` is empty."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks that can't be read any more."""

    block_hashes: list[Hash]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Whatever was said before is void; what there is follows."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(NamedTuple):
    """Events of one model."""

    topic: str
    events: list[Event]


class KvFeed:
    """Gathers events until they are taken. `medium`: as routers call the pool's memory."""

    def __init__(self, *, int_hashes: bool, medium: str = "CPU", topic: str = "kv@moonpool@") -> None:
        self._int_hashes = int_hashes
        self._medium = medium
        self._topic = topic
        self._events: dict[str, list[Event]] = {}
        self._waiting = 0
        self._left: list[Iterator[None]] = []  # tables that are gone through in slices
        self._resync_from_s = 0.0
        self._resync_wanted = False
        self.forgotten = 0

    # ------------------------------------------------------------ what tables tell

    def stored(self, table: Table, row: int) -> None:
        """The row has become ready."""
        name, parent = self._name(table.hashes[row]), table.parent_of(row)
        events = self._of(table)
        last = events[-1] if events else None
        above = self._name(parent) if parent else None
        if isinstance(last, BlockStored) and above is not None and last.block_hashes[-1] == above:
            last.block_hashes.append(name)
        else:
            size = table.spec.block_tokens
            events.append(BlockStored([name], above, [], size, None, self._medium, None))
        self._count(1)

    def removed(self, table: Table, row: int) -> None:
        """The row was ready, and is not any more."""
        self._remove(table, [table.hashes[row]])

    def cleared(self, table: Table) -> None:
        """The whole table is dropped; nothing changes it any more."""
        self._left.append(self._through(table, stored=False))
        if len(self._left) > TABLES_LEFT_MAX:
            self._left.clear()
            self._resync_wanted = True

    def _remove(self, table: Table, hashes: list[bytes]) -> None:
        events = self._of(table)
        if not events or not isinstance(events[-1], BlockRemoved):
            events.append(BlockRemoved([], self._medium))
        last = events[-1]
        assert isinstance(last, BlockRemoved)
        last.block_hashes += map(self._name, hashes)
        self._count(len(hashes))

    def _of(self, table: Table) -> list[Event]:
        return self._events.setdefault(self._topic + table.spec.name, [])

    def _name(self, block_hash: bytes) -> Hash:
        return int.from_bytes(block_hash, "big") & ((1 << 64) - 1) if self._int_hashes else block_hash

    def _count(self, blocks: int) -> None:
        self._waiting += blocks
        if self._waiting > WAITING_MAX:
            self.forgotten += self._waiting
            self._events.clear()
            self._waiting = 0
            self._resync_wanted = True

    # ------------------------------------------------------------ resync, and handing over

    def resync(self) -> None:
        """A router has lost events for good: everything is said again, at most every RESYNC_PAUSE_S."""
        self._resync_wanted = True

    def take(self, tables: list[Table], now_s: float) -> list[Batch]:
        """What has happened since the last call, and a slice of what must be said again. A few times a second."""
        if self._resync_wanted and now_s >= self._resync_from_s:
            self._resync_wanted = False
            self._resync_from_s = now_s + RESYNC_PAUSE_S
            self._events = {self._topic + table.spec.name: [AllBlocksCleared()] for table in tables}
            self._waiting = 0
            self._left = [self._through(table, stored=True) for table in tables]
        if self._left and next(self._left[0], self) is self:
            self._left.pop(0)
        batches = [Batch(topic, events) for topic, events in self._events.items() if events]
        self._events, self._waiting = {}, 0
        return batches

    def _through(self, table: Table, *, stored: bool) -> Iterator[None]:
        for first in range(0, table.columns.count, RESYNC_ROWS):
            rows = (np.flatnonzero(view(table.ready)[first : first + RESYNC_ROWS]) + first).tolist()
            if stored:
                for row in rows:
                    self.stored(table, row)
            elif rows:
                self._remove(table, [table.hashes[row] for row in rows])
            yield

    def validate(self) -> None:
        """Asserts the bounds."""
        assert self._waiting <= WAITING_MAX
