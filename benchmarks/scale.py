"""How large a run is: ordinary, in full, or the quick form that a test runs to see that every case works."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moonpool.benchmarks.arena import Shape

ROW_MAX = 16
ROW_BYTES = 32 << 20
ROW_PIECES = 512
"""So many at most in a row of batches over tcp: Mooncake without pooled connections opens one for each, and stops answering
where the kernel has no ports left."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers that the groups read. `samples`: at most, a case; `case_s`: no new sample after so long. Left out are batches
    of more than `batch_bytes_max`, and lookups among `lookup_blocks_many` where that is 0."""

    quick: bool
    samples: int
    case_s: float
    pool_bytes: int
    arena_bytes: int
    sizes: dict[str, int]
    batches: dict[str, int]
    batch_bytes_max: int
    small_batch: int
    calls: int
    keys: int
    clients: int
    lookup_blocks: int
    lookup_blocks_many: int
    prompt_blocks: int
    memory_blocks: int
    recoveries: int
    recovery_objects: int
    recovery_s: float
    churn_pool_bytes: int
    churn_s: float

    def row(self, shape: Shape, place: str) -> int:
        """How many batches of it follow one another in a trial on one host (`host`) or between two (`tcp`)."""
        if self.quick:
            return 2
        most = ROW_PIECES // (shape.count * shape.fragments) if place == "tcp" else ROW_MAX
        return max(1, min(ROW_MAX, ROW_BYTES // shape.total_bytes, most))


FULL = Scale(
    quick=False,
    samples=9,
    case_s=2.5,
    pool_bytes=1280 << 20,
    arena_bytes=513 << 20,
    sizes={"64k": 64 << 10, "256k": 256 << 10, "1m": 1 << 20, "4m": 4 << 20},
    batches={"b16": 16, "b128": 128},
    batch_bytes_max=512 << 20,
    small_batch=1000,
    calls=300,
    keys=300_000,
    clients=8,
    lookup_blocks=300_000,
    lookup_blocks_many=5_000_000,
    prompt_blocks=5000,
    memory_blocks=1_000_000,
    recoveries=3,
    recovery_objects=20_000,
    recovery_s=10.0,
    churn_pool_bytes=1 << 30,
    churn_s=1.0,
)

ORDINARY = replace(
    FULL,
    samples=5,
    case_s=1.0,
    pool_bytes=640 << 20,
    arena_bytes=129 << 20,
    batch_bytes_max=128 << 20,
    lookup_blocks_many=0,
)

QUICK = Scale(
    quick=True,
    samples=2,
    case_s=0.0,
    pool_bytes=64 << 20,
    arena_bytes=12 << 20,
    # Names stay, so that both forms have the same cases; what they name shrinks.
    sizes={"64k": 16 << 10, "256k": 32 << 10, "1m": 64 << 10, "4m": 80 << 10},
    batches={"b16": 2, "b128": 4},
    batch_bytes_max=512 << 20,
    small_batch=50,
    calls=4,
    keys=2000,
    clients=2,
    lookup_blocks=2000,
    lookup_blocks_many=4000,
    prompt_blocks=500,
    memory_blocks=20_000,
    recoveries=1,
    recovery_objects=200,
    recovery_s=4.0,
    churn_pool_bytes=24 << 20,
    churn_s=0.1,
)
