"""What a client asks of a long chain: some hashes whole, samples of all. The double of hot_chains.c."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np


def python_probe_points(
    hashes: Sequence[bytes], hash_bytes: int, sample_mask: int, runs: list[tuple[int, int, int]]
) -> tuple[bytes, ...] | None:
    """See native.probe_points."""
    if any(
        first < 0 or count < 1 or stride < 1 or first + count > len(hashes) for first, count, stride in runs
    ):
        raise ValueError("a run beyond the chain")
    points = [
        [*hashes[first + stride - 1 : first + count - 1 : stride], hashes[first + count - 1]]
        for first, count, stride in runs
    ]
    looked_at = hashes if sample_mask >= 0 else list(chain.from_iterable(points))
    if not set(map(len, looked_at)) <= {hash_bytes}:
        return None
    sample = b""
    if sample_mask >= 0:
        names = np.frombuffer(b"".join(hashes), dtype="<u8")[:: hash_bytes // 8]
        sample = names[(names & np.uint64(sample_mask)) == 0].tobytes()
    return (sample, *map(b"".join, points))
