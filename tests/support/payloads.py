"""Contents that follow from a key, so that any reader can tell right bytes from somebody else's."""

from __future__ import annotations

import hashlib

import numpy as np

from moonpool.schemas.packed import U8


def chain_hashes(name: str, blocks: int) -> list[bytes]:
    """Chained block hashes of 32 bytes, as an engine would make them for one prompt."""
    hashes, parent = [], name.encode()
    for _ in range(blocks):
        parent = hashlib.sha256(parent).digest()
        hashes.append(parent)
    return hashes


def payload(block_hash: bytes, rank: int, size_bytes: int) -> U8:
    """The only right content of (hash, rank): every 32 bytes depend on the key and on their place."""
    words = np.frombuffer(block_hash, dtype="<u8").astype(np.uint64)
    count = -(-size_bytes // 8)
    places = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(rank + 1)
    mixed = np.resize(words, count) ^ places
    return mixed.view(np.uint8)[:size_bytes]
