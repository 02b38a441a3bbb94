"""Which of some plain keys are there, at a master that holds many: exist_<keys>_<hit|miss>."""

from __future__ import annotations

from moonpool.benchmarks.cast import cast
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.trials import Samples, measure
from moonpool.benchmarks.workers import Worker

COUNTS = (1, 100, 1000, 5000)
VALUE_BYTES = 64
FILL_BATCH = 1000
CALLS = 5


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """All exist cases."""
    results = []
    with cast(_pool_bytes(scale), scale.arena_bytes) as members:
        # Nothing is moved here, so Mooncake's best place is its own process.
        workers = members.members("host", limit=False, sums=False)
        for worker in workers:
            progress.step(f"{worker.name} takes {scale.keys} keys")
            worker.ask("fill", prefix="key-", count=scale.keys, size=VALUE_BYTES, batch=FILL_BATCH)
        for count in COUNTS:
            for hit in (True, False):
                name = f"exist_{count}_{'hit' if hit else 'miss'}"
                progress.step(name)
                results += _case(scale, workers, name, min(count, scale.keys // 2), hit)
    return results


def _pool_bytes(scale: Scale) -> int:
    return max(scale.pool_bytes, scale.keys * 2048)


def _case(scale: Scale, workers: list[Worker], name: str, count: int, hit: bool) -> list[Result]:
    def trial(worker: Worker, number: int) -> tuple[list[float], bool]:
        first = (number + 1) * count % (scale.keys - count)
        answer = worker.ask(
            "exist",
            prefix="key-" if hit else "nothing-",
            first=first,
            count=count,
            calls=CALLS,
            expected=count if hit else 0,
        )
        return [seconds * 1e6 for seconds in answer["samples"]], answer["verified"]

    return measure(Samples(name, "exist", "us"), scale, workers, trial)
