"""The seam behind which hard state lives: ordered records under one revision, transactions, leases, watches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct


class Record(Struct, frozen=True):
    """`version`: the revision of its last write, never 0. `lease`: 0 where it stays by itself."""

    key: bytes
    value: bytes
    version: int
    lease: int = 0


class Page(Struct, frozen=True):
    """Records in key order, and the revision they are read at. `more`: go on after the last one's key."""

    records: tuple[Record, ...]
    revision: int
    more: bool


class Put(Struct, frozen=True):
    """`lease`: the record goes when that lease ends."""

    key: bytes
    value: bytes
    lease: int = 0


class Delete(Struct, frozen=True):
    """What isn't there may be deleted too."""

    key: bytes


class DeletePrefix(Struct, frozen=True):
    """All keys that begin so."""

    prefix: bytes


Write = Put | Delete | DeletePrefix


class Condition(Struct, frozen=True):
    """On a key's version (0: it is absent), or where `value` is given on its value."""

    key: bytes
    version: int = 0
    value: bytes | None = None


class Changes(Struct, frozen=True):
    """What one transaction changed under a watched prefix."""

    revision: int
    puts: tuple[Record, ...]
    deletes: tuple[bytes, ...]


class MetadataStore(Protocol):
    """Keys are relative to the store's own prefix. Raises StoreFailed (nothing has changed), DeadlineExceeded or
    RpcFailed (a commit may have happened all the same), Closed."""

    async def read(
        self, prefix: bytes, *, after: bytes = b"", records_max: int = 1000, timeout_s: float
    ) -> Page:
        """Records of a prefix behind the key `after`; maybe fewer than there are and than asked for."""

    async def commit(
        self, writes: Sequence[Write], *, conditions: Sequence[Condition] = (), timeout_s: float
    ) -> int | None:
        """One transaction: its revision, or None where a condition failed. Limits: limits.py. Raises LeaseLost."""

    async def grant(self, ttl_s: float, *, timeout_s: float) -> int:
        """A new lease; etcd counts whole seconds."""

    async def keep_alive(self, lease: int, *, timeout_s: float) -> float:
        """The lease counts from now again. Its TTL in seconds. Raises LeaseLost."""

    async def revoke(self, lease: int, *, timeout_s: float) -> None:
        """Ends a lease; one that has ended may be revoked too."""

    def watch(self, prefix: bytes, *, after_revision: int) -> AsyncIterator[Changes]:
        """Every later transaction, in order. Raises Compacted: read again, and watch after that."""

    async def compact(self, revision: int, *, timeout_s: float) -> None:
        """Forgets the history up to this revision; the records stay."""

    async def close(self) -> None:
        """Whoever still waits gets Closed."""
