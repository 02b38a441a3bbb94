"""Calls of operators: what tools ask of a pool, and engines never do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from moonpool.schemas.errors import ProtocolError
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import (
    AS_CONFIGURED,
    Clear,
    DescribeKeyspace,
    Done,
    Drain,
    DrainProgress,
    Drains,
    GetDrains,
    GetStatus,
    Hello,
    KeyspaceFacts,
    Keyspaces,
    ListKeyspaces,
    ListTenants,
    NodeInfo,
    NodeState,
    Presence,
    Present,
    Remove,
    Removed,
    SetReplicas,
    SetTenant,
    StatusReport,
    TenantInfo,
    Tenants,
    Warm,
    Warmed,
    decode_from_node,
)
from moonpool.schemas.packed import join_hashes
from moonpool.store_client.cluster import Cluster
from moonpool.store_client.gate import Gate
from moonpool.store_client.listing import Listed, ListingPage, list_page
from moonpool.store_client.nodes import Nodes
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import Credentials
from moonpool.store_client.transports.tcp import TcpTransport


class AdminParts(NamedTuple):
    """Of the StoreClient whose calls these are."""

    gate: Gate
    cluster: Cluster
    nodes: Nodes
    hello: Hello
    credentials: Credentials
    deadline_s: Callable[[float | None], float]


class Admin:
    """`StoreClient.admin`. Deadlines and errors are as in StoreClient's own calls."""

    def __init__(self, parts: AdminParts) -> None:
        self._parts = parts

    def describe_keyspace(self, keyspace: bytes, *, timeout_s: float | None = None) -> KeyspaceFacts:
        """How much there is of a keyspace. Raises KeyspaceUnknown."""
        with self._parts.gate:
            deadline_s = self._parts.deadline_s(timeout_s)
            return self._parts.cluster.ask(DescribeKeyspace(keyspace), KeyspaceFacts, deadline_s)

    def soft_pin(
        self,
        keyspace: bytes,
        hashes: list[bytes],
        ttl_s: float,
        *,
        rank: int = -1,
        timeout_s: float | None = None,
    ) -> int:
        """Keeps rows of a flat keyspace for `ttl_s`, but for a put that finds no other room. Returns how many are
        there. Raises InvalidParams for other keyspaces, and times that are too long."""
        request = Presence(keyspace, join_hashes(hashes), rank, round(ttl_s * 1000))
        with self._parts.gate:
            return sum(self._parts.cluster.ask(request, Present, self._parts.deadline_s(timeout_s)).bits)

    def would_remove(
        self, keyspace: bytes, hashes: list[bytes], *, force: bool = False, timeout_s: float | None = None
    ) -> Removed:
        """What StoreClient.remove would say. Nothing is removed."""
        request = Remove(keyspace, join_hashes(hashes), force, dry_run=True)
        with self._parts.gate:
            return self._parts.cluster.ask(request, Removed, self._parts.deadline_s(timeout_s))

    def would_clear(self, keyspace: bytes, *, force: bool = True, timeout_s: float | None = None) -> Removed:
        """What StoreClient.clear would say. Nothing is removed."""
        with self._parts.gate:
            request = Clear(keyspace, force, dry_run=True)
            return self._parts.cluster.ask(request, Removed, self._parts.deadline_s(timeout_s))

    def drain(self, node: str, *, on: bool = True, timeout_s: float | None = None) -> bool:
        """No new puts go to nodes of this name from now on, and what they hold is moved away; or (`on` false) they are in
        use again. Returns whether that is new. Raises NotFound."""
        with self._parts.gate:
            deadline_s = self._parts.deadline_s(timeout_s)
            return self._parts.cluster.ask(Drain(node, on), Done, deadline_s).count > 0  # of every master

    def set_replicas(self, keyspace: bytes, replicas: int, *, timeout_s: float | None = None) -> bool:
        """How many copies the blocks of a keyspace should have, on so many hosts. They are made afterwards, from node to
        node. Returns whether that is new. Raises KeyspaceUnknown, InvalidParams."""
        with self._parts.gate:
            request, deadline_s = SetReplicas(keyspace, replicas), self._parts.deadline_s(timeout_s)
            return any(done.count for done in self._parts.cluster.ask_all(request, Done, deadline_s))

    def warm(
        self,
        keyspace: bytes,
        hashes: Sequence[bytes] = (),
        *,
        with_prefix: bool = False,
        node: str = "",
        copies: int = 2,
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> Warmed:
        """Copies ahead of use, see Warm: ordered when this returns, and made afterwards. For admins. Raises NotFound (the
        node), KeyspaceUnknown, InvalidParams."""
        request = Warm(keyspace, join_hashes(hashes), with_prefix, node, copies, dry_run)
        with self._parts.gate:
            parts = self._parts.cluster.ask_all(request, Warmed, self._parts.deadline_s(timeout_s))
        return Warmed(*(sum(column) for column in zip(*map(msgspec.structs.astuple, parts), strict=True)))

    def drains(self, *, timeout_s: float | None = None) -> list[DrainProgress]:
        """How far the nodes are that are to be emptied, all masters' shards together. For admins and monitors."""
        with self._parts.gate:
            parts = self._parts.cluster.ask_all(GetDrains(), Drains, self._parts.deadline_s(timeout_s))
        found: dict[str, list[int]] = {}
        for one in (one for part in parts for one in part.nodes):
            numbers = msgspec.structs.astuple(one)[1:]
            before = found.get(one.node, [0] * len(numbers))
            found[one.node] = [sum(pair) for pair in zip(before, numbers, strict=True)]
        return [DrainProgress(name, *found[name]) for name in sorted(found)]

    def tenants(self, *, timeout_s: float | None = None) -> list[TenantInfo]:
        """Tenants that have keyspaces or a quota. For admins and monitors."""
        with self._parts.gate:
            parts = self._parts.cluster.ask_all(ListTenants(), Tenants, self._parts.deadline_s(timeout_s))
        found: dict[str, TenantInfo] = {}
        for one in (one for part in parts for one in part.tenants):
            before = found.get(one.tenant)
            used_bytes = one.used_bytes + (before.used_bytes if before else 0)
            found[one.tenant] = msgspec.structs.replace(one, used_bytes=used_bytes)
        return [found[name] for name in sorted(found)]

    def set_quota(self, tenant: str, quota_bytes: int, *, timeout_s: float | None = None) -> bool:
        """What a tenant may store (0: no quota). Returns whether that is new. For admins."""
        with self._parts.gate:
            request, deadline_s = SetTenant(tenant, quota_bytes), self._parts.deadline_s(timeout_s)
            return any(done.count for done in self._parts.cluster.ask_all(request, Done, deadline_s))

    def forget_quota(self, tenant: str, *, timeout_s: float | None = None) -> bool:
        """What the masters' settings say of a tenant holds again. Returns whether that is new. For admins."""
        return self.set_quota(tenant, AS_CONFIGURED, timeout_s=timeout_s)

    def keyspaces_of(self, tenant: str, *, timeout_s: float | None = None) -> list[KeyspaceSpec]:
        """Of any tenant. For admins."""
        with self._parts.gate:
            deadline_s = self._parts.deadline_s(timeout_s)
            return self._parts.cluster.ask(ListKeyspaces(tenant), Keyspaces, deadline_s).specs

    def node_status(self, info: NodeInfo, *, timeout_s: float | None = None) -> dict[str, int | float | str]:
        """A node's own counters, asked of itself. Raises Unreachable."""
        with self._parts.gate:
            parts = self._parts
            connection = RpcConnection(info.rpc_address, parts.hello, decode_from_node, parts.credentials)
            try:
                reply = connection.call(GetStatus(), self._parts.deadline_s(timeout_s))
            finally:
                connection.close()
        if not isinstance(reply, StatusReport):
            raise ProtocolError(peer=info.node, reason=f"{type(reply).__name__} in answer to GetStatus")
        return reply.facts

    def lanes_to(self, info: NodeInfo, spec: KeyspaceSpec) -> TcpTransport:
        """A transport to that very node, whatever the masters would choose. The caller closes it."""
        digest, parts = spec.digest(), self._parts
        hello = msgspec.structs.replace(parts.hello, role="data")
        return TcpTransport(info, hello, 1, {digest: spec}.get, parts.credentials)

    def list_page(
        self,
        spec: KeyspaceSpec,
        *,
        after: str = "",
        limit: int = 100,
        keep: Callable[[Listed], bool] = lambda _: True,
        timeout_s: float | None = None,
    ) -> ListingPage:
        """Some of what nodes within reach hold of a keyspace, and where to go on. Raises InvalidParams."""
        parts = self._parts
        with parts.gate:
            # Looking at every slot may take long; the map may not.
            entries = parts.nodes.cluster_map(parts.deadline_s(None)).nodes
            deadline_s = parts.deadline_s(timeout_s)
            nodes = [entry.info for entry in entries if entry.state <= NodeState.LIVE]
            return list_page(nodes, parts.hello, spec, after, limit, keep, deadline_s, parts.credentials)
