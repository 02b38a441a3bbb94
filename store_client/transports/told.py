"""Calls that name a keyspace, to a node that may have forgotten it by a restart."""

from __future__ import annotations

from moonpool.schemas.errors import KeyspaceUnknown
from moonpool.schemas.messages import Message, RegisterKeyspace
from moonpool.store_client.rpc.connection_pool import ConnectionPool
from moonpool.store_client.transports.base import SpecOf


def call_told(
    node: ConnectionPool, request: Message, keyspace: bytes, spec_of: SpecOf, deadline_s: float
) -> Message:
    """The answer; a keyspace that the node has forgotten is told it again, once. Raises as ConnectionPool.call."""
    try:
        return node.call(request, deadline_s)
    except KeyspaceUnknown as error:
        return tell_and_call(node, request, keyspace, spec_of, deadline_s, error)


def tell_and_call(
    node: ConnectionPool,
    request: Message,
    keyspace: bytes,
    spec_of: SpecOf,
    deadline_s: float,
    unknown: KeyspaceUnknown,
) -> Message:
    """The second half, once the node has said that it doesn't know the keyspace."""
    spec = spec_of(keyspace)
    if spec is None:
        raise unknown
    node.call(RegisterKeyspace(spec), deadline_s)
    return node.call(request, deadline_s)
