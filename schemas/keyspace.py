"""Keyspaces: the identity under which block hashes may be compared (invariant I10)."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec

from moonpool.schemas.errors import InvalidParams

FORMAT_VERSION = 1
"""Raised whenever bytes written by an older Moonpool must not be read by a newer one."""

DIGEST_BYTES = 16
WORLD_MAX = 64
SHARD_BYTES_MAX = 1 << 40
FACTS_MAX = 64
FACTS_TEXT_MAX = 16 << 10
"""Characters of all facts together: servers keep thousands of specs, and nodes keep theirs in a segment's head."""
HASH_SIZES = (16, 32)
DEFAULT_TENANT = "default"


class Kind(StrEnum):
    """How the rows of a keyspace hang together."""

    CHAINED = "chained"  # a block counts only if every block before it is there
    FLAT = "flat"  # each row stands alone: window and state groups, plain objects


class KeyspaceSpec(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What must be equal for two engines to share blocks.

    `identity` holds every other fact that the bytes depend on (weights, dtypes, layout, hash seed, ...)
    as sorted pairs; equal names mean nothing. `shard_bytes` has the size of each rank's shard of one
    block; its length is the keyspace's `world`. Sizes of 0 mean that objects have sizes of their own; then
    each rank stands alone, because nobody can say which ones a block will have.
    """

    kind: Kind
    name: str
    shard_bytes: tuple[int, ...]
    hash_bytes: int = 32
    block_tokens: int = 0
    tenant: str = DEFAULT_TENANT
    identity: tuple[tuple[str, str], ...] = ()
    format_version: int = FORMAT_VERSION

    @property
    def world(self) -> int:
        """Distinct shards of one block, after folding ranks with equal KV."""
        return len(self.shard_bytes)

    @property
    def variable_size(self) -> bool:
        """Whether objects have sizes of their own."""
        return self.shard_bytes[0] == 0

    def digest(self) -> bytes:
        """16 bytes that name this keyspace everywhere; ids are digests, never counters."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()[:DIGEST_BYTES]

    def check(self) -> None:
        """Raises InvalidParams, naming the field, where the spec can't be served."""
        _require(1 <= self.world <= WORLD_MAX, "shard_bytes", self.shard_bytes, f"1 to {WORLD_MAX} sizes")
        variable = not any(self.shard_bytes)
        _require(
            variable or all(0 < size <= SHARD_BYTES_MAX for size in self.shard_bytes),
            "shard_bytes",
            self.shard_bytes,
            f"sizes from 1 to {SHARD_BYTES_MAX}, or zeros alone for objects of their own size",
        )
        _require(not (variable and self.kind is Kind.CHAINED), "kind", self.kind, "flat, where sizes vary")
        _require(self.hash_bytes in HASH_SIZES, "hash_bytes", self.hash_bytes, "16 or 32")
        _require(0 < len(self.name) <= 512, "name", self.name, "1 to 512 characters")
        _require(0 < len(self.tenant) <= 128, "tenant", self.tenant, "1 to 128 characters")
        _require(
            len(self.identity) <= FACTS_MAX, "identity", len(self.identity), f"{FACTS_MAX} facts at most"
        )
        text = sum(len(name) + len(value) for name, value in self.identity)
        _require(text <= FACTS_TEXT_MAX, "identity", f"{text} characters", f"{FACTS_TEXT_MAX} at most")
        _require(
            list(self.identity) == sorted(self.identity), "identity", self.identity, "pairs in sorted order"
        )


def objects_keyspace(tenant: str = DEFAULT_TENANT) -> KeyspaceSpec:
    """The flat keyspace of a tenant's plain objects: key texts of any form, values of any size."""
    return KeyspaceSpec(kind=Kind.FLAT, name="objects", shard_bytes=(0,), hash_bytes=16, tenant=tenant)


def object_hash(key: str) -> bytes:
    """The row name of a plain object: 128 bits of SHA-256, so that no one can aim at another's key."""
    return hashlib.sha256(key.encode()).digest()[:16]


def _require(holds: bool, field: str, value: object, allowed: str) -> None:
    if not holds:
        raise InvalidParams(field=f"keyspace.{field}", value=value, allowed=allowed)
