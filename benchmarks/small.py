"""4 KiB objects by the thousand: small_<put|get>_<host|tcp>."""

from __future__ import annotations

from moonpool.benchmarks.arena import Shape
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.trials import Samples, rounds
from moonpool.benchmarks.workers import Worker

OBJECT_BYTES = 4096


def cases(scale: Scale, workers: list[Worker], place: str, progress: Progress) -> list[Result]:
    """The small cases of one place."""
    progress.step(f"4 KiB objects {place}")
    puts = Samples(f"small_put_{place}", "small", "objects/s")
    gets = Samples(f"small_get_{place}", "small", "objects/s")
    for number, order in rounds(scale, workers):
        shape = Shape(scale.small_batch, OBJECT_BYTES, place=number + 1, order=number + 1)
        row = scale.row(shape, place)
        for samples, do in ((puts, "put"), (gets, "get")):
            for worker in order:
                answer = worker.ask(do, prefix=f"small-{number}-", shape=shape, row=row)
                if number >= 0:
                    rates = [shape.count / seconds for seconds in answer["samples"]]
                    samples.add(worker.name, rates, answer["verified"])
        for worker in order:
            worker.ask("remove_row", prefix=f"small-{number}-", count=shape.count, row=row)
    return [*puts.results(), *gets.results()]
