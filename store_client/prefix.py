"""The longest ready prefix of a chain, found with few bytes: a few hashes of every run, then those of a short gap.

All hashes of a prompt of 5,000 blocks are 160 KB, which cost far more time to send than the master needs to
answer. Readiness is monotone along a run (invariant I1), so every 32nd hash tells where the prefix ends but for a gap
of 31 blocks. The answer names the blocks that follow, where nothing branches off: mostly that fills the gap. Else it is asked
for in a second message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Match, Probe, Probed, ProbedRun
from moonpool.schemas.packed import join_hashes
from moonpool.schemas.runs import FIRST_BOUNDARY, split_runs

STRIDE_BLOCKS = 32
"""Of runs after the first, whose 64 hashes are sent whole: 7 KB for a prompt of 5,000 blocks."""


NAME_BYTES = 8


class PrefixSearch:
    """One chain's search. Pure: makes the messages and takes the answers."""

    def __init__(self, spec: KeyspaceSpec, hashes: Sequence[bytes]) -> None:
        """Raises nothing: `packed` of a wrong size is the caller's to refuse."""
        self._keyspace = spec.digest()
        self._size = spec.hash_bytes
        self._packed = join_hashes(hashes)
        self._runs = [(first, count, _stride(first)) for first, count in split_runs(0, len(hashes))]

    @property
    def size_bytes(self) -> int:
        """Of all hashes."""
        return len(self._packed)

    def probe(self, sample_mask: int, shards: bytes = b"", lease_ms: int = 3000) -> Probe:
        """The first message. `sample_mask`: which hashes the master wants to learn from, as it said last. `shards`: of the
        runs, a column."""
        runs = [
            ProbedRun(first, count, stride, self._points(first, count, stride))
            for first, count, stride in self._runs
        ]
        return Probe(self._keyspace, runs, lease_ms, self._sample(sample_mask), sample_mask, shards)

    def gap(self, probed: Probed, lease_ms: int = 3000) -> tuple[int, Match | None]:
        """What the first answer tells: blocks that are ready, and the question how many more there are, if any."""
        total = 0
        for (first, count, stride), found in zip(self._runs, probed.ready, strict=False):
            total = first + min(found, count)
            if found < count:
                # An answer between two points is exact: the master has cut it at a copy that it can't reach.
                end = first + min(found + stride, count) - 1
                if found % stride or end == total:
                    return total, None
                more = self._followed(total, probed.follow)
                told = probed.whole or more < len(probed.follow) // NAME_BYTES or total + more >= end
                if found and told:
                    return min(total + more, end), None
                packed = self._packed[total * self._size : end * self._size]
                return total, Match(self._keyspace, [(total, packed)], lease_ms)
        return total, None

    def _followed(self, first: int, names: bytes) -> int:
        """How many of the names are those of the chain's next blocks."""
        count = len(names) // NAME_BYTES
        for at in range(count):
            start = (first + at) * self._size
            own = self._packed[start : start + NAME_BYTES]
            if own != names[at * NAME_BYTES : (at + 1) * NAME_BYTES]:
                return at
        return count

    def _points(self, first: int, count: int, stride: int) -> bytes:
        size, packed = self._size, self._packed
        if stride == 1:
            return packed[first * size : (first + count) * size]
        end = first + count
        inner = np.frombuffer(packed, dtype=f"V{size}")[first + stride - 1 : end - 1 : stride]
        return inner.tobytes() + packed[(end - 1) * size : end * size]

    def _sample(self, mask: int) -> bytes:
        if mask < 0:
            return b""
        names = np.frombuffer(self._packed, dtype="<u8")[:: self._size // 8]
        sampled: bytes = names[(names & np.uint64(mask)) == 0].tobytes()
        return sampled


def _stride(first: int) -> int:
    return STRIDE_BLOCKS if first >= FIRST_BOUNDARY else 1
