"""The nodes as those that plan copies see them: who has room, and whom that would push out."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, partial

from moonpool.master.node import Node
from moonpool.master.nodes import Nodes
from moonpool.master.replicas.planner import Seat
from moonpool.master.shard_set import ShardSet

RESERVE_SHARE = 0.02
"""Of a node's memory stays free whatever is copied there."""


class Seats:
    """Of a core's nodes, as its shards fill them."""

    def __init__(self, shards: ShardSet, nodes: Nodes) -> None:
        self._shards = shards
        self._nodes = nodes

    def all(self, named: Collection[int] = ()) -> list[Seat]:
        """Of a large cluster some nodes, each time others, and always those that are named."""
        promised, takers = self._shards.promised(), {node.index: node for node in self._nodes.writable()}
        for index in named:
            node = self._nodes.at(index)
            if node is not None and self._nodes.staying[index]:
                takers[index] = node
        return [self._seat(node, promised.get(index, 0)) for index, node in takers.items()]

    def _seat(self, node: Node, promised_bytes: int) -> Seat:
        capacity_bytes = node.info.capacity_bytes
        free_bytes = node.free_bytes - promised_bytes
        return Seat(
            node.index,
            node.info.host,
            free_bytes - node.kept_free_bytes,
            free_bytes - int(RESERVE_SHARE * capacity_bytes),
            cache(partial(self._victim_use_s, node.index)),
            node.info.page_bytes,
        )

    def _victim_use_s(self, index: int) -> float:
        times_s = [
            last_use_s
            for _, table in self._shards.changing()
            if (last_use_s := table.candidates.next_last_use_s(index)) is not None
        ]
        return min(times_s, default=float("inf"))

    def host_of(self, index: int) -> str:
        """Of a node by its index; empty where it is gone."""
        node = self._nodes.at(index)
        return node.info.host if node is not None else ""
