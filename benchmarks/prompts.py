"""Prompts of the lookups: chains of block hashes that follow from a name, and how Mooncake's connector names them."""

from __future__ import annotations

import hashlib

import numpy as np

from moonpool.schemas.keyspace import KeyspaceSpec, Kind

HASH_BYTES = 32


def lookup_spec(world: int) -> KeyspaceSpec:
    """The keyspace of the lookups."""
    return KeyspaceSpec(
        kind=Kind.CHAINED, name=f"lookup-tp{world}", shard_bytes=(65536,) * world, block_tokens=16
    )


def chain(name: str, blocks: int) -> list[bytes]:
    """Random hashes; chains of two names share none."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    packed = np.random.default_rng(seed).bytes(blocks * HASH_BYTES)
    return [packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)]


def prompt(name: str, kept: int, blocks: int) -> list[bytes]:
    """`kept` blocks of the chain of that name, then blocks that nobody has."""
    return chain(name, blocks)[:kept] + chain(f"{name}, and then unknown", blocks)[kept:]


def text_keys(hashes: list[bytes], world: int) -> list[str]:
    """A key a block and rank, as vLLM's connector for Mooncake Store writes them."""
    return [
        f"lookup@tp_rank:{rank}@pcp0@dcp0@pp_rank:0@group:0@{block.hex()}"
        for block in hashes
        for rank in range(world)
    ]
