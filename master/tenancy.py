"""Tenants at a master: a keyspace of another tenant is answered as one that nobody has heard of."""

from __future__ import annotations

from collections.abc import Mapping

from moonpool.schemas.errors import Forbidden, KeyspaceUnknown
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import ListKeyspaces, Message, PutStart, RegisterKeyspace


def keyspaces_of(message: Message) -> list[bytes]:
    """The digests of all keyspaces that a request names."""
    if isinstance(message, PutStart):
        return [item.keyspace for item in message.items]
    keyspace: bytes | None = getattr(message, "keyspace", None)
    return [] if keyspace is None else [keyspace]


def check_scope(message: Message, tenant: str, specs: Mapping[bytes, KeyspaceSpec]) -> None:
    """Before a request of somebody who is to see one tenant alone. Raises KeyspaceUnknown and Forbidden.

    Ahead of every other check, for unknown keyspaces too: else what is wrong with the rest of a request would show
    whether another tenant has that keyspace.
    """
    if isinstance(message, RegisterKeyspace):
        check_own(message.spec.tenant, tenant)
    elif isinstance(message, ListKeyspaces):
        check_own(message.tenant, tenant)
    for keyspace in keyspaces_of(message):
        spec = specs.get(keyspace)
        if spec is None or spec.tenant != tenant:
            raise KeyspaceUnknown(keyspace=keyspace.hex())


def check_own(named: str, tenant: str) -> None:
    """Raises Forbidden, equally for tenants that there are and that there aren't."""
    if named != tenant:
        raise Forbidden(detail=f"this token is of tenant {tenant!r}, not {named!r}: set tenant = {tenant!r}")
