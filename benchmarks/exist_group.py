"""Which of some plain keys are there, at a master that holds many: exist_<keys>_<hit|miss>.

Clients and masters are on one host, where ours leave tcp; exist_<keys>_<hit|miss>_tcp: as if ours came from another one.
"""

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
TCP_COUNTS = (1, 100)
"""Of more keys the way there is a small part."""

CALLS = {1: 30, 100: 30}
"""Of one trial; 5 of more keys. As many of short ones as `latency` has: the first ones find every process asleep."""


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """All exist cases."""
    results = []
    with cast(_pool_bytes(scale), scale.arena_bytes) as members:
        # Nothing is moved here, so Mooncake's best place is its own process.
        workers = members.members("host", limit=False, sums=False)
        far = members.moonpool("moonpool", "tcp")
        for worker in [*workers, far]:
            progress.step(f"{worker.name} takes {scale.keys} keys")
            worker.ask("fill", prefix="key-", count=scale.keys, size=VALUE_BYTES, batch=FILL_BATCH)
        others = [worker for worker in workers if worker.name != "moonpool"]
        for end, counts, asked in (("", COUNTS, workers), ("_tcp", TCP_COUNTS, [far, *others])):
            for count in counts:
                for hit in (True, False):
                    name = f"exist_{count}_{'hit' if hit else 'miss'}{end}"
                    progress.step(name)
                    results += _case(scale, asked, name, min(count, scale.keys // 2), hit)
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
            calls=CALLS.get(count, 5),
            expected=count if hit else 0,
        )
        return [seconds * 1e6 for seconds in answer["samples"]], answer["verified"]

    return measure(Samples(name, "exist", "us"), scale, workers, trial)
