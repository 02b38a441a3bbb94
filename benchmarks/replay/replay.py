"""Runs traces against policies and pool sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moonpool.benchmarks.replay.paper_pool import PaperPool, block_hash
from moonpool.benchmarks.replay.rivals import optimum_hits, s3fifo_hits
from moonpool.benchmarks.replay.trace import Trace
from moonpool.master.eviction import EvictionPolicy, LeastRecentlyUsed
from moonpool.schemas.errors import InvalidParams


@dataclass(frozen=True, slots=True)
class Row:
    """One replay. `prefix_hit_ratio`: leading blocks that were there, over all blocks that were asked for."""

    trace: str
    capacity_blocks: int
    policy: str
    prefix_hit_ratio: float


def _default_hits(trace: Trace, capacity_blocks: int) -> int:
    return pool_hits(trace, capacity_blocks, None)


def _lru_hits(trace: Trace, capacity_blocks: int) -> int:
    return pool_hits(trace, capacity_blocks, LeastRecentlyUsed())


POLICIES: dict[str, Callable[[Trace, int], int]] = {
    "default": _default_hits,
    "lru": _lru_hits,
    "s3fifo": s3fifo_hits,
    "optimum": optimum_hits,
}
"""Prefix hits in blocks of each policy: the pool's default and LRU run in the real index, the rest are simulated."""


def pool_hits(trace: Trace, capacity_blocks: int, policy: EvictionPolicy | None) -> int:
    """Prefix hits of the real index with a policy (None: the default)."""
    pool = PaperPool(capacity_blocks, policy)
    hashes: dict[int, bytes] = {}
    first_ms = trace[0].timestamp if trace else 0.0
    hits = 0
    for request in trace:
        chain = [
            hashes[block] if block in hashes else hashes.setdefault(block, block_hash(block))
            for block in request.hash_ids
        ]
        hits += pool.serve(chain, 1.0 + (request.timestamp - first_ms) / 1000)
    return hits


def replay(name: str, trace: Trace, capacities: Sequence[int], policies: Sequence[str]) -> Iterator[Row]:
    """One row a capacity and policy. Raises InvalidParams."""
    for policy in policies:
        if policy not in POLICIES:
            raise InvalidParams(field="policy", value=policy, allowed=", ".join(POLICIES))
    for capacity in capacities:
        if capacity < 1:
            raise InvalidParams(field="capacity_blocks", value=capacity, allowed="1 or more")
    blocks = sum(len(request.hash_ids) for request in trace)
    for capacity in capacities:
        for policy in policies:
            yield Row(name, capacity, policy, POLICIES[policy](trace, capacity) / max(1, blocks))


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The document that `moonpool replay --json` prints."""
    return {"rows": [asdict(row) for row in rows]}
