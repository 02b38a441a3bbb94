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


Hits = Callable[[Trace, int, int], int]
"""Prefix hits in blocks: of a trace, for so many blocks on so many nodes."""

POLICIES: dict[str, Hits] = {
    "default": lambda trace, capacity_blocks, nodes: pool_hits(trace, capacity_blocks, None, nodes),
    "lru": lambda trace, capacity_blocks, nodes: pool_hits(
        trace, capacity_blocks, LeastRecentlyUsed(), nodes
    ),
    "s3fifo": lambda trace, capacity_blocks, nodes: s3fifo_hits(trace, capacity_blocks),
    "optimum": lambda trace, capacity_blocks, nodes: optimum_hits(trace, capacity_blocks),
}
"""The pool's default and LRU run in the real index; the rest are simulated, in one memory however many nodes there are."""


def pool_hits(trace: Trace, capacity_blocks: int, policy: EvictionPolicy | None, nodes: int = 1) -> int:
    """Prefix hits of the real index with a policy (None: the default)."""
    pool = PaperPool(capacity_blocks, policy, nodes)
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


def replay(
    name: str, trace: Trace, capacities: Sequence[int], policies: Sequence[str], nodes: int = 1
) -> Iterator[Row]:
    """One row a capacity and policy. Raises InvalidParams."""
    for policy in policies:
        if policy not in POLICIES:
            raise InvalidParams(field="policy", value=policy, allowed=", ".join(POLICIES))
    for capacity in capacities:
        if capacity < nodes:
            raise InvalidParams(field="capacity_blocks", value=capacity, allowed=f"{nodes} or more")
    blocks = sum(len(request.hash_ids) for request in trace)
    for capacity in capacities:
        for policy in policies:
            yield Row(name, capacity, policy, POLICIES[policy](trace, capacity, nodes) / max(1, blocks))


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The document that `moonpool replay --json` prints."""
    return {"rows": [asdict(row) for row in rows]}
