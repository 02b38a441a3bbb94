"""The pool seam: the few calls that the connector makes. StoreClient satisfies it; fake_pool.py is the fake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.packed import U8
from moonpool.store_client.blocks import BlockGet, BlockPut
from moonpool.store_client.telemetry import Telemetry

__all__ = ["BlockGet", "BlockPut", "PoolClient"]


class PoolClient(Protocol):
    """Blocking, thread-safe, a deadline on each call. What raises and what doesn't: see StoreClient."""

    def register_keyspace(self, spec: KeyspaceSpec, *, timeout_s: float | None = None) -> bytes:
        """Digest of the keyspace."""
        ...

    def match(self, keyspace: bytes, hashes: Sequence[bytes], *, timeout_s: float | None = None) -> int:
        """Longest ready prefix in blocks, leased for some seconds."""
        ...

    def presence(
        self, keyspace: bytes, hashes: Sequence[bytes], *, rank: int = -1, timeout_s: float | None = None
    ) -> list[bool]:
        """Which blocks of a flat keyspace are there, leased for some seconds."""
        ...

    def renew(
        self, keyspace: bytes, hashes: Sequence[bytes], *, timeout_s: float | None = None
    ) -> list[bool]:
        """Leases blocks in use again: all hashes from position 0 (flat: just the hashes)."""
        ...

    def put_blocks(self, puts: Sequence[BlockPut], *, timeout_s: float | None = None) -> list[U8]:
        """One array of Status a put."""
        ...

    def get_blocks(self, get: BlockGet, *, timeout_s: float | None = None) -> U8:
        """A Status a block; only where it is OK has the destination what was asked for."""
        ...

    def clear(self, keyspace: bytes, *, timeout_s: float | None = None) -> object:
        """Removes every row of one keyspace."""
        ...

    def prepare(self, *, timeout_s: float | None = None) -> int:
        """Maps and pins what first transfers would wait for; may take seconds."""
        ...

    def take_telemetry(self) -> Telemetry:
        """What transfers took since the last call, and which peers failed lately. Asks nobody."""
        ...

    def close(self) -> None:
        """Ends calls under way soon."""
        ...
