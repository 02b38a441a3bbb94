"""Runs: the stretches of a chain that metadata is sharded by. Boundaries at 0, 64, 512 and every 512 after."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

FIRST_BOUNDARY = 64
STRIDE = 512


def run_start(position: int) -> int:
    """Position of the first block of the run that `position` lies in."""
    if position < FIRST_BOUNDARY:
        return 0
    if position < STRIDE:
        return FIRST_BOUNDARY
    return position - position % STRIDE


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


def shard_of(keyspace: bytes, run_root: bytes, shards: int) -> int:
    """The shard of a run, by its first block's hash (of a flat row, by its own)."""
    if shards == 1:
        return 0
    return xxhash.xxh3_64_intdigest(keyspace + run_root) % shards
