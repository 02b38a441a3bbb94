"""The chaos test's data: chains ten times as large as the pool."""

from __future__ import annotations

from moonpool.schemas.keyspace import KeyspaceSpec, Kind

BLOCK_BYTES = 32 << 10
POOL_BYTES = 32 << 20
CHAINS = 140
SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="chaos", shard_bytes=(BLOCK_BYTES,), block_tokens=16)


def chain_length(chain: int) -> int:
    """Blocks of a chain: 20 to 120, so that some cross a run boundary."""
    return 20 + (chain * 37) % 101
