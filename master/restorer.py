"""What outlives a master, put into its index: pins, removals that nodes have not confirmed, entries of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from moonpool.master.columns import NO_ROW, NO_SEGMENT, view
from moonpool.master.node import OUTSTANDING_MAX, Node
from moonpool.master.nodes import Nodes
from moonpool.master.shard_set import ShardSet
from moonpool.master.step import Step
from moonpool.master.store.records import RemovalRecord
from moonpool.master.table import Table
from moonpool.master.withheld import withhold
from moonpool.schemas.errors import KeyspaceUnknown
from moonpool.schemas.messages import Drop, Entries, NodeState, Op
from moonpool.schemas.packed import split_hashes


class Restorer:
    """Pure, as the core is whose shards and nodes these are."""

    def __init__(
        self,
        shards: ShardSet,
        nodes: Nodes,
        next_drop_id: Callable[[], int],
        step_of: Callable[[float, str, int], Step],
    ) -> None:
        self._step_of = step_of
        self._shards = shards
        self._nodes = nodes
        self._next_drop_id = next_drop_id

    # ------------------------------------------------------------ pins

    def keep_pins(self, shard: int, keyspace: bytes, pins: Mapping[bytes, float]) -> None:
        """Pins (hash: until when, in seconds of the core's clock) that hold whether or not their rows are there: a
        row that comes back is pinned again. Raises WrongShard, KeyspaceUnknown."""
        table = self._shards.get(shard).table(keyspace)
        table.kept_pins.update(pins)
        for block_hash, until_s in pins.items():
            row = table.rows.get(block_hash)
            if row != NO_ROW and table.committed[row]:
                table.pins.add(row, until_s)

    def release_pins(self, shard: int, keyspace: bytes, hashes: Iterable[bytes]) -> None:
        """They hold no longer than their rows' own pins do. Raises the same."""
        table = self._shards.get(shard).table(keyspace)
        for block_hash in hashes:
            table.kept_pins.pop(block_hash, None)

    def pinned(self, keyspace: bytes, packed: bytes) -> dict[int, list[bytes]]:
        """By shard, which of these hashes have rows that are pinned."""
        found: dict[int, list[bytes]] = {}
        for shard in self._shards:
            table = self._shards.get(shard).table(keyspace)
            hashes = split_hashes(packed, table.spec.hash_bytes)
            rows = table.rows.get_all(hashes)
            pinned = [one for one, row in zip(hashes, rows, strict=True) if row in table.pins]
            if pinned:
                found[shard] = pinned
        return found

    def disobedient(self, shard: int, keyspace: bytes, hashes: list[bytes]) -> list[str]:
        """Nodes with copies of these rows that have not seen the epoch of the shard's owner: an earlier one could still
        have them drop the rows (I7). Raises WrongShard, KeyspaceUnknown."""
        table = self._shards.get(shard).table(keyspace)
        rows = [row for row in table.rows.get_all(hashes) if row != NO_ROW]
        which = [view(layer.which).reshape(-1, table.world)[rows] for layer in table.layers.all]
        holders = np.unique(np.stack(which))
        nodes = [self._nodes.at(index) for index in holders.tolist() if index != NO_SEGMENT]
        return [
            node.info.node
            for node in nodes
            if node is not None and node.state is not NodeState.LOST and shard not in node.obeys
        ]

    def kept_rows(self, keyspace: bytes) -> dict[int, set[bytes]]:
        """By shard, hashes of kept pins whose rows are there, and not going in slices of a removal."""
        found: dict[int, set[bytes]] = {}
        for shard in self._shards:
            table = self._table(shard, keyspace)
            if table is not None and table.kept_pins:
                gone = {NO_ROW}.union(*(table.subtree(row, len(table.hashes)) or () for row in table.doomed))
                found[shard] = {one for one in table.kept_pins if table.rows.get(one) not in gone}
        return found

    def _table(self, shard: int, keyspace: bytes) -> Table | None:
        try:
            return self._shards.get(shard).table(keyspace)
        except KeyspaceUnknown:
            return None

    # ------------------------------------------------------------ removals

    def recall(self, segment: bytes, shard: int, removal: RemovalRecord) -> Drop | None:
        """A removal that an announced node must hear of again: the drop that its next stream is given. None: it has
        enough to do for now."""
        node = self._nodes.get(segment)
        if node is None or len(node.outstanding_of(shard)) >= OUTSTANDING_MAX:
            return None
        drop = Drop(
            self._next_drop_id(),
            self._shards.epoch(shard),
            removal.drops,
            removal.keyspace,
            removal.hashes,
            removal.whole_keyspace,
            shard,
            removal.order,
        )
        node.expect(drop)
        if shard not in node.streams:
            node.retold.add(drop.drop_id)
        return drop

    def order(self, shard: int) -> tuple[int, int]:
        """Of a removal that nobody is told of yet (see Drop). Raises KeyError where the shard isn't owned."""
        return self._shards.epoch(shard), self._next_drop_id()

    def obeyed(self, segment: bytes, shard: int, order: tuple[int, int]) -> bool:
        """Whether the node has said that it has done this, whoever asked for it."""
        node = self._nodes.get(segment)
        return node is not None and (shard, *order) in node.obeyed

    def admitted(self, op: Op, node: Node, step: Step) -> Op:
        """A report's op without what a removal has named that the node has not done: of an inventory under way."""
        if not isinstance(op, Entries) or not node.outstanding or step.shard not in node.naming:
            return op
        spec = self._shards.get(step.shard).table(op.keyspace).spec
        return withhold(op, node.outstanding_of(step.shard), spec, node.index, step.drops)

    def outstanding(self, segment: bytes) -> frozenset[int]:
        """Ids of the drops that a node has not confirmed."""
        node = self._nodes.get(segment)
        return frozenset(node.outstanding) if node is not None else frozenset()

    def remember_drain(self, name: str, on: bool) -> None:
        """A node that is to get no new puts, or is to get some again, whether or not it is here yet."""
        self._nodes.remember_drain(name, on)

    def keyspaces(self) -> frozenset[bytes]:
        """Digests of all that are known."""
        return frozenset(spec.digest() for spec in self._shards.specs())

    # ------------------------------------------------------------ the entry log

    def remember(self, segment: bytes, name: str, now_s: float) -> None:
        """A node that the log speaks of: suspect until it announces itself, lost if it doesn't."""
        self._nodes.remember(segment, name, now_s)

    def hint(self, shard: int, segment: bytes, entries: Entries, now_s: float) -> int:
        """Rows as the log has them. They are matched once their node is there; its inventory drops what is not true.
        Returns how many copies there were; none of a node whose inventory has begun. Raises WrongShard, KeyspaceUnknown,
        InvalidParams."""
        node = self._nodes.get(segment)
        index = self._shards.get(shard)
        if node is None or shard in node.streams:
            return 0
        index.check(entries)
        index.table(entries.keyspace).hinted.add(node.index)
        step = self._step_of(now_s, "", shard)  # what it has no use for is no news to the node
        index.apply(node.index, entries, step)
        return len(entries.ranks) // 2

    def recovered(self, shard: int) -> bool:
        """Whether every node that isn't lost has named all that it holds of an owned shard."""
        nodes = [node for node in self._nodes.all() if node.state is not NodeState.LOST]
        return shard in self._shards and all(shard in node.named for node in nodes)

    def tables(self, shard: int) -> list[Table]:
        """Of an owned shard."""
        return list(self._shards.get(shard).offers())

    def table(self, shard: int, keyspace: bytes) -> Table | None:
        """One of them; None where there is no such keyspace or the shard is not owned any more."""
        return self._table(shard, keyspace) if shard in self._shards else None

    def name_of_segment(self, segment: bytes) -> str:
        """The node of a segment."""
        node = self._nodes.get(segment)
        return node.info.node if node is not None else segment.hex()

    def name_of(self, index: int) -> tuple[bytes, str]:
        """A segment's id and its node, by its index."""
        segment = self._nodes.names[index]
        node = self._nodes.get(segment)
        return segment, node.info.node if node is not None else ""
