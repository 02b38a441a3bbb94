"""What others may see of a core: nodes, tables and sums. To be read only."""

from __future__ import annotations

from collections.abc import Iterator

from moonpool.master.ceiling import Asked, Ceiling
from moonpool.master.evictions import Evictions
from moonpool.master.node import Node
from moonpool.master.nodes import Nodes
from moonpool.master.shard_set import ShardSet
from moonpool.master.table import Table
from moonpool.master.top_prefixes import TopPrefixes
from moonpool.schemas.errors import NotFound
from moonpool.schemas.messages import NodeEntry, NodeState


class Look:
    """At one core, by whoever runs in its event loop."""

    def __init__(self, nodes: Nodes, shards: ShardSet) -> None:
        self._nodes = nodes
        self._shards = shards

    @property
    def shards_total(self) -> int:
        """Of the cluster."""
        return self._shards.total

    def nodes(self) -> list[Node]:
        """Every node, lost ones too."""
        return self._nodes.all()

    def entries(self) -> list[NodeEntry]:
        """Nodes as the cluster map has them."""
        return self._nodes.entries()

    def take_changes(self) -> list[tuple[str, bytes, NodeState]]:
        """(node, segment, state) of every change of state since the last call."""
        changes = list(self._nodes.changes)
        self._nodes.changes.clear()
        return changes

    def segment_name(self, index: int) -> bytes:
        """A segment's id by its number in the index."""
        return self._nodes.names[index]

    def node_name(self, segment: bytes) -> str:
        """The name of a segment's node; the segment's own where nobody knows it any more."""
        node = self._nodes.get(segment)
        return segment.hex() if node is None else node.info.node

    def segment_index(self, segment: bytes) -> int:
        """The reverse of `segment_name`. Raises NotFound."""
        node = self._nodes.get(segment)
        if node is None:
            raise NotFound(key=f"segment {segment.hex()}")
        return node.index

    def tables(self) -> Iterator[tuple[int, Table]]:
        """(shard, table) of every keyspace in every shard that is owned. To be read only."""
        return self._shards.tables()

    def epoch_of(self, shard: int) -> int:
        """Of a shard that is owned."""
        return self._shards.epoch(shard)

    def top_prefixes(self) -> list[tuple[int, TopPrefixes]]:
        """(shard, what prompts begin with most often)."""
        return [(shard, demand.top) for shard, demand in self._shards.demands()]

    def ceiling(self) -> Asked:
        """What was asked for, and the hit ratio that an infinite pool would have had."""
        return Ceiling.over([demand.ceiling for _, demand in self._shards.demands()])

    @property
    def evictions(self) -> Evictions:
        """What made room."""
        return self._shards.evictions
