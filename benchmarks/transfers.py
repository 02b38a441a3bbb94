"""Put and get of batches: four sizes, three numbers of fragments, two batch sizes, same host and tcp.

Names: <put|get>_<host|tcp>_<size>_f<fragments>_<batch>, and the same with _sums where checksums are computed and
compared. In each trial a subject puts a row of batches, one right behind the other as an engine at work does, and gets
them back; each batch is a sample, and every byte is compared.
"""

from __future__ import annotations

from moonpool.benchmarks.arena import Shape
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.trials import Samples, put_and_get
from moonpool.benchmarks.workers import Worker

FRAGMENTS = (1, 32, 128)
REDIS_SHAPES = ("64k_f1_b16", "1m_f1_b16")


def cases(scale: Scale, workers: list[Worker], place: str, progress: Progress) -> list[Result]:
    """All put and get cases of one place."""
    results = []
    for size_name, size in scale.sizes.items():
        for fragments in FRAGMENTS:
            for batch_name, batch in scale.batches.items():
                if batch * size > scale.batch_bytes_max:
                    continue
                name = f"{size_name}_f{fragments}_{batch_name}"
                progress.step(f"put, get {place} {name}")
                mine = [w for w in workers if w.name != "redis" or name in REDIS_SHAPES]
                results += _case(scale, mine, place, name, Shape(batch, size, fragments))
    return results


def _case(scale: Scale, workers: list[Worker], place: str, name: str, shape: Shape) -> list[Result]:
    puts = Samples(f"put_{place}_{name}", "put", "GB/s")
    gets = Samples(f"get_{place}_{name}", "get", "GB/s")
    row = scale.row(shape, place)
    return put_and_get(
        scale, workers, (puts, gets), shape, row, lambda seconds: shape.total_bytes / seconds / 1e9
    )
