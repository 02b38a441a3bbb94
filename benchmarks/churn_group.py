"""A full pool that is put into without a pause: churn_<1m|4k>, and churn_<1m|4k>_failed, how many puts fail.

Every put is of new keys, so each needs room that another object must leave. Nobody waits or tries again.
"""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.benchmarks.cast import cast
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.trials import Samples, rounds
from moonpool.benchmarks.workers import Worker

SHAPES = {"1m": (1 << 20, 16), "4k": (4096, 1000)}
QUICK_SHAPES = {"1m": (256 << 10, 4), "4k": (4096, 200)}
FILL_FACTOR = 1.2


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """All churn cases."""
    results = []
    for name, (size, batch) in (QUICK_SHAPES if scale.quick else SHAPES).items():
        with cast(scale.churn_pool_bytes, min(scale.arena_bytes, 256 << 20)) as members:
            workers = members.members("host", limit=False, sums=False)
            fill(scale, progress, workers, name, size, batch)
            progress.step(f"churn_{name}")
            results += _case(scale, workers, name, size, batch)
    return results


def fill(
    scale: Scale, progress: Progress, workers: Sequence[Worker], name: str, size: int, batch: int
) -> None:
    """Fills the pool of each with objects of that size, whose name is for who watches. Puts may fail here already."""
    count = int(FILL_FACTOR * scale.churn_pool_bytes) // size
    for worker in workers:
        progress.step(f"{worker.name} is filled with objects of {name}")
        worker.ask("fill", prefix="old-", count=count, size=size, batch=batch)


def _case(scale: Scale, workers: list[Worker], name: str, size: int, batch: int) -> list[Result]:
    rates = Samples(f"churn_{name}", "churn", "objects/s")
    failures = Samples(f"churn_{name}_failed", "churn", "% failed")
    for number, order in rounds(scale, workers):
        for worker in order:
            answer = worker.ask(
                "churn", prefix=f"churn-{number}-", size=size, batch=batch, seconds=scale.churn_s
            )
            if number >= 0 and not worker.died:
                rates.add(worker.name, [answer["stored"] / answer["seconds"]], answer["verified"])
                share = answer["failed"] / (answer["stored"] + answer["failed"])
                failures.add(worker.name, [100 * share], answer["verified"])
    return [*rates.results(), *failures.results()]
