"""Every record of hard state: its key, and its value as a tagged, versioned Struct."""

from __future__ import annotations

import msgspec

from moonpool.schemas.errors import CorruptStore
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import DropList


class KeyspaceRecord(msgspec.Struct, frozen=True, array_like=True, tag="keyspace/1"):
    """keyspaces/<digest>: a keyspace that was registered."""

    spec: KeyspaceSpec


class PinRecord(msgspec.Struct, frozen=True, array_like=True, tag="pin/1"):
    """pins/<shard>/<keyspace>/<hash>: ends at this time in ms since 1970, or with an unpin (0)."""

    until_ms: int


class RemovalRecord(msgspec.Struct, frozen=True, array_like=True, tag="removal/1"):
    """removals/<shard>/<segment>/<number>: what a node was told to drop and has not confirmed. Fields: see Drop."""

    node: str
    at_ms: int
    drops: list[DropList]
    keyspace: bytes
    hashes: bytes
    whole_keyspace: bool
    order: tuple[int, int] = (0, 0)


class TenantRecord(msgspec.Struct, frozen=True, array_like=True, tag="tenant/1"):
    """tenants/<name>: its quotas; 0: none."""

    quota_bytes: int = 0
    pins_max: int = 0


class DrainRecord(msgspec.Struct, frozen=True, array_like=True, tag="drain/1"):
    """drains/<node>: its data is to be moved off it."""

    since_ms: int


class ReplicaRecord(msgspec.Struct, frozen=True, array_like=True, tag="replicas/1"):
    """replicas/<keyspace>: copies that each of its rows should have."""

    replicas: int


class NodeRecord(msgspec.Struct, frozen=True, array_like=True, tag="node/1"):
    """nodes/<segment>: a segment that has announced itself, and the name of its node."""

    node: str


HardRecord = (
    KeyspaceRecord | PinRecord | RemovalRecord | TenantRecord | DrainRecord | ReplicaRecord | NodeRecord
)

KINDS: dict[str, type[msgspec.Struct]] = {
    "keyspaces": KeyspaceRecord,
    "pins": PinRecord,
    "removals": RemovalRecord,
    "tenants": TenantRecord,
    "drains": DrainRecord,
    "replicas": ReplicaRecord,
    "nodes": NodeRecord,
}
"""First part of the key, and what its records are."""

CLUSTER_WIDE = ("keyspaces", "tenants", "drains", "replicas", "nodes")
OF_A_SHARD = ("pins", "removals")

_decoder = msgspec.msgpack.Decoder(HardRecord)


def encode(record: HardRecord) -> bytes:
    """A record's value."""
    return msgspec.msgpack.encode(record)


def decode(key: bytes, value: bytes) -> HardRecord:
    """The record at a key. Raises CorruptStore where it is none, or one of a later version."""
    try:
        record = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptStore(path="the metadata store", offset=key, reason=str(error)) from None
    wanted = KINDS.get(key.split(b"/")[0].decode(errors="replace"))
    if type(record) is not wanted:
        raise CorruptStore(path="the metadata store", offset=key, reason=f"it holds {type(record).__name__}")
    return record


def keyspace_key(digest: bytes) -> bytes:
    """See KeyspaceRecord."""
    return b"keyspaces/" + digest.hex().encode()


def pin_key(shard: int, keyspace: bytes, block_hash: bytes) -> bytes:
    """See PinRecord."""
    return f"pins/{shard:05}/{keyspace.hex()}/{block_hash.hex()}".encode()


def removal_key(shard: int, segment: bytes, number: int) -> bytes:
    """See RemovalRecord."""
    return f"removals/{shard:05}/{segment.hex()}/{number:020}".encode()


def tenant_key(name: str) -> bytes:
    """See TenantRecord."""
    return b"tenants/" + name.encode()


def drain_key(node: str) -> bytes:
    """See DrainRecord."""
    return b"drains/" + node.encode()


def node_key(segment: bytes) -> bytes:
    """See NodeRecord."""
    return b"nodes/" + segment.hex().encode()


def replicas_key(keyspace: bytes) -> bytes:
    """See ReplicaRecord."""
    return b"replicas/" + keyspace.hex().encode()


def shard_prefix(kind: str, shard: int) -> bytes:
    """Of all records of one kind and shard."""
    return f"{kind}/{shard:05}/".encode()
