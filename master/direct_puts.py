"""Direct puts: a writer may put plain objects to one node for a moment, without asking for each.

Only where the answer would be the same for all of them: one node on the writer's host, or none there and one in all; which has
room (or little is put), no quota to be kept, nothing to be noted beside. Where several could be named, which one is best changes with each put
(placement.py), and nobody knows that for the puts to come. Objects that are in the pool already are refused when they are reported: a writer that meets one asks
again before it puts more.
"""

from __future__ import annotations

from msgspec import structs

from moonpool.master.node import Node
from moonpool.master.nodes import Nodes
from moonpool.master.shard_set import ShardSet
from moonpool.master.tenant_calls import TenantCalls
from moonpool.schemas.keyspace import Kind
from moonpool.schemas.messages import DIRECT_BYTES, SMALL_BYTES, NodeState, PutItem, PutStart, PutStarted

DIRECT_MS = 1000
"""Drains and quotas come into force for direct puts when this is over; for puts under way that takes longer."""

SPARE_SHARE = 32
"""This part of a node's memory is no room for direct puts, small ones apart: what they waste, others would have to leave for."""


class DirectPuts:
    """Of one master."""

    def __init__(self, shards: ShardSet, nodes: Nodes, tenants: TenantCalls) -> None:
        self._shards = shards
        self._nodes = nodes
        self._tenants = tenants

    def allow(self, message: PutStart, reply: PutStarted, host: str) -> PutStarted:
        """The reply to a writer on that host, with what it may do from now on."""
        only = self._nodes.only_writable(host)
        if only is None or only.state is not NodeState.LIVE or only.naming or only.outstanding:
            return reply
        direct_ms = [
            DIRECT_MS if segment == only.info.segment and not any(answers) and self._is_plain(item) else 0
            for item, answers, segment in zip(message.items, reply.answers, reply.segments, strict=True)
        ]
        if not any(direct_ms):
            return reply
        direct_bytes = max(SMALL_BYTES, min(DIRECT_BYTES, self._room_bytes(only) // 2))
        return structs.replace(reply, direct_ms=direct_ms, direct_bytes=direct_bytes)

    def _room_bytes(self, node: Node) -> int:
        free_bytes = node.free_bytes - self._shards.promised().get(node.index, 0)
        return free_bytes - node.info.capacity_bytes // SPARE_SHARE

    def _is_plain(self, item: PutItem) -> bool:
        spec = self._shards.specs_by_digest[item.keyspace]
        named = bool(item.request_id or item.session_id)
        alone = spec.kind is Kind.FLAT and spec.variable_size
        return alone and not named and not self._tenants.has_quota(spec.tenant)
