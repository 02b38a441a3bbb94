"""The longest ready prefix of a chain, found with few bytes: a few hashes of every run, then those of a short gap.

All hashes of a prompt of 5,000 blocks are 160 KB, which cost far more time to send than the master needs to
answer. Readiness is monotone along a run (invariant I1), so every 32nd hash tells where the prefix ends but for a gap
of 31 blocks. The answer names the blocks that follow, where nothing branches off: mostly that fills the gap. Else it is asked
for in a second message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Match, Probe, Probed, ProbedRun
from moonpool.schemas.packed import join_hashes
from moonpool.schemas.runs import FIRST_BOUNDARY, split_runs
from moonpool.store_client.native import probe_points

STRIDE_BLOCKS = 32
"""Of runs after the first, whose 64 hashes are sent whole: 7 KB for a prompt of 5,000 blocks."""


NAME_BYTES = 8


class PrefixSearch:
    """One chain's search. Pure: makes the messages and takes the answers."""

    def __init__(self, spec: KeyspaceSpec, hashes: Sequence[bytes]) -> None:
        self._keyspace = spec.digest()
        self._size = spec.hash_bytes
        self._hashes = hashes
        self._runs = _runs(len(hashes))

    def probe(self, sample_mask: int, shards: bytes = b"", lease_ms: int = 3000) -> Probe:
        """The first message. `sample_mask`: which hashes the master wants to learn from, as it said last (below 0: from
        none). `shards`: of the runs, a column. Raises InvalidParams where a hash is of another size."""
        # Without a sample only those that are sent are looked at: most of a long chain's hashes lie in no cache.
        found = probe_points(self._hashes, self._size, sample_mask, self._runs)
        if found is None:
            raise InvalidParams(field="hashes", value="another size", allowed=f"{self._size} bytes each")
        sample, *points = found
        runs = [
            ProbedRun(first, count, stride, some)
            for (first, count, stride), some in zip(self._runs, points, strict=True)
        ]
        return Probe(self._keyspace, runs, lease_ms, sample, sample_mask, shards)

    def gap(self, probed: Probed, lease_ms: int = 3000) -> tuple[int, Match | None]:
        """What the first answer tells: blocks that are ready, and the question how many more there are, if any."""
        total = 0
        for (first, count, stride), ready in zip(self._runs, probed.ready, strict=False):
            if ready >= count:
                total = first + count
            else:
                found = max(0, ready)
                total = first + found
                # An answer between two points is exact: the master has cut it at a copy that it can't reach.
                end = first + min(found + stride, count) - 1
                if found % stride or end == total:
                    return total, None
                more = self._followed(total, probed.follow)
                told = probed.whole or more < len(probed.follow) // NAME_BYTES or total + more >= end
                if found and told:
                    return min(total + more, end), None
                packed = join_hashes(self._hashes[total:end])
                return total, Match(self._keyspace, [(total, packed)], lease_ms)
        return total, None

    def _followed(self, first: int, names: bytes) -> int:
        """How many of the names are those of the chain's next blocks."""
        count = len(names) // NAME_BYTES
        for at in range(count):
            if self._hashes[first + at][:NAME_BYTES] != names[at * NAME_BYTES : (at + 1) * NAME_BYTES]:
                return at
        return count


@lru_cache(maxsize=64)
def _runs(blocks: int) -> list[tuple[int, int, int]]:
    """(first block, blocks, stride) of each run of a chain so long. Not to be changed."""
    return [(first, count, _stride(first)) for first, count in split_runs(0, blocks)]


def _stride(first: int) -> int:
    return STRIDE_BLOCKS if first >= FIRST_BOUNDARY else 1
