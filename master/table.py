"""The index of one (shard, keyspace): what chained and flat keyspaces have in common.

A row is a block, not a rank: a bitmap of committed ranks, and each rank's place in location columns of width
`world`; further copies lie in columns like those (copies.py). Rows come only from the nodes' reports and live as long as a copy of theirs does (or, in a chained
keyspace, a row that hangs on them). A row is `ready` when every rank is committed, nobody doubts a copy, and
the subclass has no objection. Segments are small numbers here: nodes.py gives them out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moonpool.master.columns import NO_ROW, NO_SEGMENT, Columns, view
from moonpool.master.copies import Layers, Place, name_copies
from moonpool.master.drops import DropBatch
from moonpool.master.entries import EntryColumns
from moonpool.master.eviction import SAME_USE_S, USES_MAX, EvictionPolicy
from moonpool.master.hash_map import HashMap
from moonpool.master.pins import Pins
from moonpool.master.traffic import Traffic
from moonpool.master.victim_queues import Depths
from moonpool.master.victims import UNREADY_S, Candidates
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.packed import I64, U16, U64

if TYPE_CHECKING:
    from moonpool.master.kv_feed import KvFeed

Usable = NDArray[np.bool_]
"""By segment index: whether readers and writers may be sent there."""


class Table(Depths, ABC):
    """Rows of one keyspace. No call costs more than its arguments, and the subtree it must un-ready, are long."""

    def __init__(self, spec: KeyspaceSpec, policy: EvictionPolicy) -> None:
        self.spec = spec
        self.keyspace = spec.digest()
        self.world = spec.world
        self.shard_bytes: I64 = np.array(spec.shard_bytes, dtype=np.int64)
        self.full = (1 << spec.world) - 1
        self.rows = HashMap()
        self.hashes: list[bytes] = []  # of each row; empty where the row is free
        self.columns = Columns()
        self.committed = self.columns.add("Q")  # bit r: rank r is committed
        self.which = self.columns.add("H", self.world, b"\xff")
        self.slots = self.columns.add("I", self.world)
        self.generations = self.columns.add("Q", self.world)
        self.lengths = self.columns.add("Q", self.world) if spec.variable_size else None
        self.layers = Layers(self)
        self.replicas = 1
        """Copies that each rank of a row should have, on so many hosts."""
        self.ready = self.columns.add_flags()
        self.leased_until_s = self.columns.add("d")
        self.last_use_s = self.columns.add("d")
        self.uses = self.columns.add_flags()  # up to USES_MAX; lifted to the row above when this one goes
        self.unready_since_s = self.columns.add("d")
        self.doubted: dict[int, int] = {}  # row -> ranks whose copy was reported bad
        self.doomed: dict[int, None] = {}  # rows to be removed soon, with all that hangs on them
        self.pins = Pins()
        self.kept_pins: dict[bytes, float] = {}  # hash -> end of a pin that holds again when its row is back
        self.copies: dict[int, int] = {}  # segment -> copies on it
        self.used_bytes = 0  # of all copies
        self.marks: dict[int, bytearray] = {}  # segment -> cells that its inventory under way has named
        self.hinted: set[int] = set()  # segments of which the entry log has spoken and no inventory since
        self.traffic = Traffic()
        self.feed: KvFeed | None = None
        """Who is told what becomes ready and what ends being so; of chained keyspaces, if anybody."""
        self.policy = policy
        self.candidates = Candidates(self, policy)

    # ------------------------------------------------------------ what the kinds differ in

    @abstractmethod
    def rows_of(self, entries: EntryColumns, now_s: float) -> list[int]:
        """The row of each entry, made where it is new; NO_ROW where an entry contradicts what is known."""

    @abstractmethod
    def has_child(self, row: int) -> bool:
        """Whether another row hangs on this one."""

    @abstractmethod
    def subtree(self, row: int, rows_max: int) -> list[int] | None:
        """The row and all that hangs on it, parents first; None where they are more than `rows_max`."""

    @abstractmethod
    def settle(self, row: int) -> None:
        """Makes the row ready, and what hangs on it, where nothing is missing any more."""

    @abstractmethod
    def unready(self, row: int, now_s: float) -> None:
        """The row is not ready, nor is, before this returns, anything that hangs on it."""

    @abstractmethod
    def vacate(self, row: int, now_s: float) -> None:
        """The row has no copy left: it goes, unless another one hangs on it."""

    # ------------------------------------------------------------ facts

    def __len__(self) -> int:
        return len(self.rows)

    def position_of(self, row: int) -> int:
        """Position in the chain; 0 in flat keyspaces."""
        return 0

    def adopt(self, segment: int, entries: EntryColumns, now_s: float) -> bool:
        """Takes in committed slots, all of them first copies of new rows that nothing else is missing of, in one
        step. False, and nothing is changed, where that isn't so, or isn't worth it."""
        return False

    def pin_again(self, rows: Iterable[int]) -> None:
        """Kept pins hold for rows that are back, before anybody looks for victims among them."""
        if self.kept_pins:
            for row in rows:
                until_s = self.kept_pins.get(self.hashes[row])
                if until_s is not None:
                    self.pins.add(row, until_s)

    def evictable(self, rows: I64, segment: int, level: int, score: int, now_s: float) -> NDArray[np.bool_]:
        """Which rows, the first time they are named, are what their entries in the queue say and protected by nothing."""
        raise NotImplementedError

    def bytes_of(self, rows: I64) -> I64:
        """Payload bytes of each row's only copy."""
        raise NotImplementedError

    def discard_alike(self, rows: I64, segment: int, drops: DropBatch) -> None:
        """`discard` of rows that `evictable` has passed."""
        raise NotImplementedError

    def parent_of(self, row: int) -> bytes:
        """Hash of the row that this one hangs on; empty where there is none in this table."""
        return b""

    def children_of(self, row: int) -> int:
        """How many rows hang on this one directly."""
        return 0

    def child_of(self, row: int) -> int:
        """Some row that hangs on this one; NO_ROW where none does."""
        return NO_ROW

    def soft_until_s(self, row: int) -> float:
        """End of the lease that yields to a put in need; 0 where there is no such thing."""
        return 0.0

    def enough(self, row: int) -> bool:
        """Whether no rank is missing: all are committed or, where ranks stand alone, any is."""
        committed = self.committed[row]
        return bool(committed == self.full or (committed and self.spec.variable_size))

    def complete(self, row: int) -> bool:
        """Whether no rank is missing, none is doubted, and the row is to stay."""
        return self.enough(row) and row not in self.doubted and row not in self.doomed

    def sound(self, row: int, rank: int) -> bool:
        """Whether this rank is committed and undoubted, and the row is to stay."""
        committed = self.committed[row] & ~self.doubted.get(row, 0)
        return bool(committed >> rank & 1) and row not in self.doomed

    def stale(self, row: int, now_s: float) -> bool:
        """Whether the row has been unready for so long that nobody is expected to complete it."""
        return not self.ready[row] and self.unready_since_s[row] + UNREADY_S <= now_s

    def protected(self, row: int, now_s: float) -> bool:
        """Whether a lease or a pin forbids removing the row."""
        return self.leased_until_s[row] > now_s or row in self.pins

    def place(self, row: int, rank: int) -> Place:
        """Where a committed rank lies: its first copy."""
        cell = row * self.world + rank
        length = self.lengths[cell] if self.lengths is not None else self.spec.shard_bytes[rank]
        return Place(self.which[cell], self.slots[cell], self.generations[cell], length)

    def places(self, row: int, rank: int) -> list[Place]:
        """Where all copies of a committed rank lie."""
        cell, length = row * self.world + rank, self.place(row, rank).length
        return [
            Place(layer.which[cell], layer.slots[cell], layer.generations[cell], length)
            for layer in self.layers.holding(cell)
        ]

    def is_at(self, row: int, rank: int, segment: int, slot: int, generation: int) -> bool:
        """Whether a copy of the rank lies at exactly this place."""
        cell = row * self.world + rank
        layer = self.layers.on(cell, segment)
        return layer is not None and (layer.slots[cell], layer.generations[cell]) == (slot, generation)

    def ranks_of(self, row: int) -> Iterator[int]:
        """Ranks that are committed."""
        committed = self.committed[row]
        while committed:
            yield (committed & -committed).bit_length() - 1
            committed &= committed - 1

    def segments_of(self, row: int) -> set[int]:
        """Segments that hold a copy."""
        first, end = row * self.world, (row + 1) * self.world
        found = set(self.which[first:end])
        for layer in self.layers.more:
            found |= set(layer.which[first:end])
        return found - {NO_SEGMENT}

    def ranks_on(self, row: int, segment: int) -> list[int]:
        """Ranks that have a copy on a segment."""
        first = row * self.world
        found = [
            rank for rank, other in enumerate(self.which[first : first + self.world]) if other == segment
        ]
        for layer in self.layers.more:
            others = enumerate(layer.which[first : first + self.world])
            found += [rank for rank, other in others if other == segment]
        return found

    def bytes_on(self, row: int, segment: int) -> int:
        """Payload bytes of the row's copies on a segment."""
        first = row * self.world
        sizes = self.spec.shard_bytes if self.lengths is None else self.lengths[first : first + self.world]
        return sum(sizes[rank] for rank in self.ranks_on(row, segment))

    def live(self, rows: I64, usable: Usable) -> NDArray[np.bool_]:
        """Which rows have a copy of each rank on usable segments."""
        cells: U16 = view(self.which).reshape(-1, self.world)[rows]
        usable_cells: NDArray[np.bool_] = usable[cells]
        for layer in self.layers.more:
            usable_cells |= usable[view(layer.which).reshape(-1, self.world)[rows]]
        alive: NDArray[np.bool_] = np.all(usable_cells, axis=1)
        return alive

    def lease(self, row: int, until_s: float) -> None:
        """Promises not to evict the row, nor what it hangs on, before then. Leases are only ever raised."""
        self.leased_until_s[row] = max(self.leased_until_s[row], until_s)

    def use(self, row: int, now_s: float) -> None:
        """Somebody uses the row, or still does."""
        if now_s - self.last_use_s[row] >= SAME_USE_S:
            self.uses[row] = min(self.uses[row] + 1, USES_MAX)
        self.last_use_s[row] = now_s

    # ------------------------------------------------------------ places

    def count_copies(self, segment: int, copies: int, size_bytes: int) -> None:
        """The segment holds so many copies more, and the table so many bytes."""
        self.used_bytes += size_bytes
        left = self.copies.get(segment, 0) + copies
        if left:
            self.copies[segment] = left
        else:
            del self.copies[segment]

    def bytes_in(self, ranks: NDArray[Any], lengths: U64) -> int:
        """Of copies of these ranks, all together. `lengths` count where sizes vary."""
        return int((self.shard_bytes[ranks] if self.lengths is None else lengths).sum())

    def move(self, row: int, rank: int, segment: int, slot: int, generation: int) -> None:
        """The copy lies elsewhere in its segment now."""
        cell = row * self.world + rank
        layer = self.layers.on(cell, segment)
        assert layer is not None
        layer.slots[cell], layer.generations[cell] = slot, generation

    def add_copy(self, row: int, rank: int, place: Place, now_s: float) -> None:
        """One more copy of a committed rank, on a segment that has none of it; COPIES_MAX at most."""
        cell = row * self.world + rank
        new_here = place.segment not in self.segments_of(row)
        self.layers.put(cell, place.segment, place.slot, place.generation)
        self.count_copies(place.segment, 1, self.place(row, rank).length)
        if new_here:
            self.candidates.add(row, place.segment, now_s)

    # ------------------------------------------------------------ removals

    def drop_copy(self, row: int, rank: int, segment: int, now_s: float) -> None:
        """The copy of a rank on a segment is gone. The row goes too with its last one."""
        if self._forget_copy(row, rank, segment):
            self.settle(row)  # the one that is gone may have been in doubt
            return
        self.unready(row, now_s)
        if not self.committed[row]:
            self.vacate(row, now_s)
        elif self.enough(row):
            self.settle(row)

    def discard(self, row: int, now_s: float, drops: DropBatch) -> None:
        """Removes a row that nothing hangs on. Its copies are to be dropped by their nodes."""
        for segment in self.segments_of(row):
            size_bytes = self.bytes_on(row, segment)
            self.count_copies(segment, -len(name_copies(self, row, segment, drops)), -size_bytes)
        self.layers.clear(row)
        self.committed[row] = 0
        self.doubted.pop(row, None)
        self.vacate(row, now_s)

    def doom(self, row: int, now_s: float) -> None:
        """The row will be removed with all that hangs on it: none of that is ready from now on."""
        self.doomed[row] = None
        self.unready(row, now_s)

    def discard_all(self, rows: list[int], now_s: float, drops: DropBatch) -> None:
        """Removes a subtree, given parents first."""
        for row in reversed(rows):
            if self.hashes[row]:  # placeholders leave with the last row that hung on them
                self.discard(row, now_s, drops)

    def _forget_copy(self, row: int, rank: int, segment: int) -> bool:
        """Returns whether another copy is left."""
        cell = row * self.world + rank
        self.count_copies(segment, -1, -self.place(row, rank).length)
        if self.which[cell] == segment:
            self._trust(row, rank)  # doubts are about the first copy
        left = self.layers.take(cell, segment)
        if not left:
            self.committed[row] &= ~(1 << rank)
        return left

    def make_row(self, block_hash: bytes, now_s: float) -> int:
        """A new row without copies, unready as of now."""
        row = self.columns.take()
        if row >= len(self.hashes):
            self.hashes.extend([b""] * (self.columns.count - len(self.hashes)))
        self.hashes[row] = block_hash
        self.rows.set(block_hash, row)
        self.last_use_s[row] = now_s
        self.uses[row] = min(self.policy.recall(block_hash) + 1, USES_MAX)
        self.unready_as_of(row, now_s)
        return row

    def unready_as_of(self, row: int, now_s: float) -> None:
        """The row alone is not ready, and its time to become so begins now."""
        self._tell_removed(row)
        self.ready[row] = 0
        self.unready_since_s[row] = now_s
        self.candidates.note_unready(row, now_s)

    def free_row(self, row: int) -> None:
        """Gives the number of a row back that has no copy and no link left."""
        self._tell_removed(row)
        self.rows.remove(self.hashes[row])
        self.hashes[row] = b""
        self.ready[row] = 0
        self.leased_until_s[row] = 0.0
        self.pins.remove(row)
        self.doomed.pop(row, None)
        self.columns.give(row)

    def _tell_removed(self, row: int) -> None:
        if self.feed is not None and self.ready[row]:
            self.feed.removed(self, row)

    # ------------------------------------------------------------ doubts

    def doubt(self, row: int, rank: int, now_s: float) -> None:
        """Somebody found this copy bad."""
        self.doubted[row] = self.doubted.get(row, 0) | 1 << rank
        self.unready(row, now_s)

    def clear_doubt(self, row: int, rank: int) -> None:
        """The node found it good."""
        self._trust(row, rank)
        self.settle(row)

    def _trust(self, row: int, rank: int) -> None:
        left = self.doubted.get(row, 0) & ~(1 << rank)
        if left:
            self.doubted[row] = left
        else:
            self.doubted.pop(row, None)

    # ------------------------------------------------------------ sweeps

    def start_inventory(self, segment: int) -> None:
        """From now on, remembers which of the copies that are known by now the segment's stream names."""
        self.marks.pop(segment, None)
        if self.copies.get(segment):
            self.marks[segment] = bytearray(self.columns.count * self.world)
        else:
            self.hinted.discard(segment)

    def end_inventory(self, segment: int) -> None:
        """All copies that it didn't name have been swept."""
        self.marks.pop(segment, None)
        self.hinted.discard(segment)

    def forget(self, segment: int) -> None:
        """The segment holds nothing any more."""
        assert segment not in self.copies
        self.marks.pop(segment, None)
        self.hinted.discard(segment)
        self.candidates.forget(segment)
