"""Runs: the stretches of a chain that metadata is sharded by, and which shard a run or a row is in.

Boundaries at 0, 64, 512 and every 512 after. A run is in the shard of its first block; a row of a flat keyspace, which
has no run, in that of its own hash.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from moonpool.schemas.packed import I64, U16, U64, count_of

FIRST_BOUNDARY = 64
STRIDE = 512
SHARDS_MAX = 512
"""Of a cluster. Segments have room for as many epochs in their heads."""

_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def run_start(position: int) -> int:
    """Position of the first block of the run that `position` lies in."""
    if position < FIRST_BOUNDARY:
        return 0
    if position < STRIDE:
        return FIRST_BOUNDARY
    return position - position % STRIDE


def depths_in_run(positions: I64) -> I64:
    """How far behind the first block of its run each of these positions lies."""
    starts = np.where(positions < STRIDE, FIRST_BOUNDARY, positions - positions % STRIDE)
    return np.asarray(positions - np.where(positions < FIRST_BOUNDARY, 0, starts), dtype=np.int64)


def run_end(position: int) -> int:
    """Position just past the run that `position` lies in."""
    if position < FIRST_BOUNDARY:
        return FIRST_BOUNDARY
    return (position // STRIDE + 1) * STRIDE


def split_runs(first: int, count: int) -> Iterator[tuple[int, int]]:
    """(position, count) of each run's part of `count` blocks from position `first` on."""
    end = first + count
    while first < end:
        stop = min(run_end(first), end)
        yield first, stop - first
        first = stop


def shard_of(keyspace: bytes, root: bytes, shards: int) -> int:
    """The shard of a run, by its first block's hash; of a flat row, by its own."""
    if shards == 1:
        return 0
    mixed = int.from_bytes(keyspace[:8], "little")
    for start in range(0, len(root), 8):
        mixed = (mixed ^ int.from_bytes(root[start : start + 8], "little")) * _MIX & _WORD
        mixed ^= mixed >> 32
    return mixed % shards


def shards_of(keyspace: bytes, roots: bytes, hash_bytes: int, shards: int) -> U16:
    """The same of many packed hashes at once."""
    count = count_of(roots, hash_bytes, "hashes")
    if shards == 1:
        return np.zeros(count, dtype=np.uint16)
    words = np.frombuffer(roots, dtype="<u8").reshape(count, hash_bytes // 8)
    mixed: U64 = np.full(count, int.from_bytes(keyspace[:8], "little"), dtype=np.uint64)
    for column in words.T:
        mixed = (mixed ^ column) * np.uint64(_MIX)
        mixed ^= mixed >> np.uint64(32)
    return (mixed % np.uint64(shards)).astype(np.uint16)
