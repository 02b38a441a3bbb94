"""One object at a time: latency_<put|get>_<host|tcp>_<4k|64k>."""

from __future__ import annotations

from moonpool.benchmarks.arena import Shape
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.trials import Samples, put_and_get
from moonpool.benchmarks.workers import Worker

SIZES = {"4k": 4 << 10, "64k": 64 << 10}
TURNS = 10


def cases(scale: Scale, workers: list[Worker], place: str, progress: Progress) -> list[Result]:
    """The latency cases of one place."""
    results = []
    calls = max(2, scale.calls // TURNS)
    for size_name, size in SIZES.items():
        progress.step(f"one object of {size_name}, {place}")
        puts = Samples(f"latency_put_{place}_{size_name}", "latency", "us")
        gets = Samples(f"latency_get_{place}_{size_name}", "latency", "us")
        results += put_and_get(
            scale, workers, (puts, gets), Shape(1, size), calls, lambda seconds: seconds * 1e6, remove=False
        )
    return results
