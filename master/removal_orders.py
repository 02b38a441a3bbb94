"""Removals on their way to the nodes: drops that each must confirm."""

from __future__ import annotations

from collections.abc import Callable

from moonpool.master.node import Node
from moonpool.master.nodes import Nodes
from moonpool.master.shard_set import ShardSet, StepOf
from moonpool.master.step import Step
from moonpool.schemas.messages import Drop


class RemovalOrders:
    """Pure, as the core is whose shards and nodes these are."""

    def __init__(self, shards: ShardSet, nodes: Nodes, next_drop_id: Callable[[], int]) -> None:
        self._shards = shards
        self._nodes = nodes
        self._next_drop_id = next_drop_id

    def of(self, step: Step) -> list[tuple[bytes, Drop]]:
        """Tells every node, those too that are away: they learn it when they are back."""
        assert step.predicate is not None
        return [(node.info.segment, self._expect(node, step, *step.predicate)) for node in self._nodes.all()]

    def go_on(self, step_of: StepOf) -> list[tuple[bytes, Drop]]:
        """Goes on with large removals: those who are away learn of these too when they are back."""
        return [
            (node.info.segment, self._expect(node, step))
            for step in self._shards.remove_some(step_of)
            for node in self._nodes.all()
            if step.drops.some(node.index)
        ]

    def _expect(
        self, node: Node, step: Step, keyspace: bytes = b"", hashes: bytes = b"", whole: bool = False
    ) -> Drop:
        """A drop that the node must confirm."""
        epoch, drops = self._shards.epoch(step.shard), step.drops.take(node.index)
        drop_id = self._next_drop_id()
        drop = Drop(drop_id, epoch, drops, keyspace, hashes, whole, step.shard, (epoch, drop_id))
        node.expect(drop)
        return drop
