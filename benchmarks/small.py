"""4 KiB objects by the thousand: small_<put|get>_<host|tcp>."""

from __future__ import annotations

from moonpool.benchmarks.arena import Shape
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.trials import Samples, put_and_get
from moonpool.benchmarks.workers import Worker

OBJECT_BYTES = 4096


def cases(scale: Scale, workers: list[Worker], place: str, progress: Progress) -> list[Result]:
    """The small cases of one place."""
    progress.step(f"4 KiB objects {place}")
    puts = Samples(f"small_put_{place}", "small", "objects/s")
    gets = Samples(f"small_get_{place}", "small", "objects/s")
    shape = Shape(scale.small_batch, OBJECT_BYTES)
    row = scale.row(shape, place)
    return put_and_get(scale, workers, (puts, gets), shape, row, lambda seconds: shape.count / seconds)
