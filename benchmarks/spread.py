"""How the beginnings of runs spread a trace's load over shards: `python -m moonpool.benchmarks.spread TRACE`, a file or a family.

Each way of cutting chains into runs gets a line: how many runs a request has, how many of three masters it asks, how many
lookups a request costs the busiest of 16 shards, and how many times the mean shard's blocks the fullest one holds.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from moonpool.benchmarks.replay.families import FAMILIES, generate
from moonpool.benchmarks.replay.trace import Request, read_trace
from moonpool.schemas.runs import run_end, shard_of

SHARDS = 16
MASTERS = 3
TRACE_BLOCK_TOKENS = 512
BLOCK_TOKENS = 16
KEYSPACE = bytes(range(16))

End = Callable[[int], int]
"""Position just past the run that a position lies in."""


def every(stride: int) -> End:
    """Runs of one length."""
    return lambda position: position - position % stride + stride


def first_then(first: int, stride: int) -> End:
    """A short first run, then runs that end at multiples of `stride`."""
    return lambda position: first if position < first else position - position % stride + stride


def doubling(first: int, stride: int) -> End:
    """Each run ends where twice as much of the chain is behind it, until they are `stride` long."""
    return lambda position: (
        first if position < first else min(1 << position.bit_length(), position - position % stride + stride)
    )


WAYS: dict[str, End] = {
    "whole chains": lambda position: 1 << 30,
    "0, every 512": every(512),
    "0, 64, every 512": run_end,
    "0, 16, every 512": first_then(16, 512),
    "0, 32, every 512": first_then(32, 512),
    "0, 128, every 512": first_then(128, 512),
    "0, 64, every 1024": first_then(64, 1024),
    "0, 64, doubling to 512": doubling(64, 512),
    "0, 32, doubling to 512": doubling(32, 512),
    "0, every 256": every(256),
    "0, 64, every 128": first_then(64, 128),
    "0, every 64": every(64),
}


class Spread(NamedTuple):
    """What one way of cutting does. `runs`, `masters` and `lookups` (of the busiest shard) are means over requests;
    `blocks`: of the fullest shard, as a multiple of the mean."""

    runs: float
    masters: float
    lookups: float
    blocks: float


def spread(requests: Iterable[Request], end_of: End) -> Spread:
    """Requests look up all of their blocks and store those that nobody had."""
    scale = TRACE_BLOCK_TOKENS // BLOCK_TOKENS
    lookups, held = Counter[int](), Counter[int]()
    seen: set[int] = set()
    shards_of_root: dict[tuple[int, int], int] = {}
    count = runs = masters = 0
    for request in requests:
        ids, first = request.hash_ids, 0
        asked: set[int] = set()
        while first < len(ids) * scale:
            end = min(end_of(first), len(ids) * scale)
            root = (ids[first // scale], first % scale)
            shard = shards_of_root.get(root)
            if shard is None:
                shard = shards_of_root[root] = shard_of(KEYSPACE, _hash(root), SHARDS)
            lookups[shard] += 1
            asked.add(shard % MASTERS)
            for index in range(first // scale, -(-end // scale)):
                if ids[index] not in seen:
                    overlap = min(end, (index + 1) * scale) - max(first, index * scale)
                    held[shard] += overlap
            runs += 1
            first = end
        seen.update(ids)
        count += 1
        masters += len(asked)
    busiest = max(lookups.values())
    return Spread(runs / count, masters / count, busiest / count, max(held.values()) * SHARDS / held.total())


def _hash(root: tuple[int, int]) -> bytes:
    return hashlib.sha256(f"{root[0]}/{root[1]}".encode()).digest()


def main() -> None:
    """Prints the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", help=f"a file, or one of {', '.join(FAMILIES)}")
    parser.add_argument(
        "--prompt-tokens", type=int, default=0, help="more tokens that all requests begin with"
    )
    flags = parser.parse_args()
    requests = generate(flags.trace) if flags.trace in FAMILIES else read_trace(Path(flags.trace))
    prompt = [-1 - index for index in range(flags.prompt_tokens // TRACE_BLOCK_TOKENS)]
    requests = [msgspec.structs.replace(one, hash_ids=prompt + one.hash_ids) for one in requests]
    print("| runs begin at | runs a request | masters asked, of 3 | lookups at the busiest shard | blocks |")
    print("| --- | --- | --- | --- | --- |")
    for name, end_of in WAYS.items():
        found = spread(requests, end_of)
        print(
            f"| {name} | {found.runs:.1f} | {found.masters:.2f} | {found.lookups:.2f} | {found.blocks:.2f} x |"
        )


if __name__ == "__main__":
    main()
