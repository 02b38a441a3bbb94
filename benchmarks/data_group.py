"""Groups that move bytes: put, get, small, latency. They share the servers of each place."""

from __future__ import annotations

from moonpool.benchmarks import latency, small, transfers
from moonpool.benchmarks.cast import PLACES, cast
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """Their cases, one place after the other."""
    results = []
    for place in PLACES:
        with cast(scale.pool_bytes, scale.arena_bytes) as members:
            workers = members.members(place)
            if wanted & {"put", "get"}:
                results += transfers.cases(scale, workers, place, progress)
            if "small" in wanted:
                results += small.cases(scale, workers, place, progress)
            if "latency" in wanted:
                results += latency.cases(scale, workers, place, progress)
    return results
