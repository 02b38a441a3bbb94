"""The experiments of `moonpool simulate`, each a list of rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moonpool.benchmarks.simulate.costs import Costs
from moonpool.benchmarks.simulate.world import Shape, Tally, World

SESSIONS_PER_ENGINE = 8
ROUTING_SESSIONS = 60
ROUTING_ENGINES = (1, 2, 4, 8, 16, 32, 60)
STORM_SHARE = 0.2
BUSY = 0.7
"""Beyond this share of its time a queue's waits grow steeply."""


@dataclass(frozen=True, slots=True)
class Row:
    """One simulated cluster, or one stretch of its time. Ratios in blocks of the prompts; `*_load`: share of time
    that the busiest one works; `shard_spread`: the busiest shard's work over the mean."""

    experiment: str
    engines: int
    phase: str
    requests_per_s: float
    hit_ratio: float
    ceiling: float
    match_p50_ms: float
    match_p99_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    master_load: float
    masters_needed: int
    shard_spread: float
    egress_load: float
    gpu_load: float
    bottleneck: str


def scale(costs: Costs, engines: Sequence[int], seconds: float, seed: int) -> Iterator[Row]:
    """Clusters of growing size under one master of 16 shards."""
    for number in engines:
        world = World(Shape(number, number * SESSIONS_PER_ENGINE), costs, seed)
        yield _stretch(world, "scale", "steady", 0.0, seconds)


def routing(costs: Costs, engines: Sequence[int], seconds: float, seed: int) -> Iterator[Row]:
    """The same sessions on more and more engines, round-robin, with the pool and without."""
    for number in ROUTING_ENGINES:
        for pool in (True, False):
            shape = Shape(number, ROUTING_SESSIONS, shards=1, pool=pool)
            yield _stretch(World(shape, costs, seed), "routing", "pool" if pool else "no pool", 0.0, seconds)


def storm(costs: Costs, engines: Sequence[int], seconds: float, seed: int) -> Iterator[Row]:
    """A fifth of the hosts goes down at once and comes back with its memory."""
    for number in engines:
        world = World(Shape(number, number * SESSIONS_PER_ENGINE), costs, seed)
        down = range(0, number, round(1 / STORM_SHARE))
        yield _stretch(world, "storm", "before", 0.0, seconds)
        world.lose_hosts(down, seconds)
        yield _stretch(world, "storm", "a fifth is down", seconds, 2 * seconds)
        world.rejoin_hosts(down, 2 * seconds)
        yield _stretch(world, "storm", "just back", 2 * seconds, 2.2 * seconds)
        yield _stretch(world, "storm", "back", 2.2 * seconds, 3 * seconds)


EXPERIMENTS: dict[str, Callable[[Costs, Sequence[int], float, int], Iterator[Row]]] = {
    "routing": routing,
    "scale": scale,
    "storm": storm,
}
"""Name and what makes its rows: (costs, engines, seconds a stretch, seed)."""


def as_json(costs: Costs, rows: Sequence[Row]) -> dict[str, Any]:
    """The document that `moonpool simulate --json` prints."""
    return {"costs": asdict(costs), "rows": [asdict(row) for row in rows]}


def _stretch(world: World, experiment: str, phase: str, start_s: float, end_s: float) -> Row:
    """Runs the world from one time to another and says what it saw there."""
    world.tally = Tally()
    before = [station.busy_s for station in _stations(world)]
    work_before = list(world.shard_work_s)
    world.run(end_s)
    span_s = end_s - start_s
    loads = [
        (station.busy_s - busy_s) / span_s for station, busy_s in zip(_stations(world), before, strict=True)
    ]
    masters, hosts = world.shape.masters, world.shape.engines
    work = [after - earlier for after, earlier in zip(world.shard_work_s, work_before, strict=True)]
    master, egress = max(loads[:masters]), max(loads[masters : masters + hosts])
    ingress, gpu = max(loads[masters + hosts : masters + 2 * hosts]), statistics.mean(loads[masters + 2 * hosts :])
    named = {"master": master, "egress": egress, "ingress": ingress, "prefill": gpu}
    tally = world.tally
    return Row(
        experiment=experiment,
        engines=hosts,
        phase=phase,
        requests_per_s=tally.requests / span_s,
        hit_ratio=tally.hit_ratio,
        ceiling=tally.ceiling,
        match_p50_ms=_percentile_ms(tally.match_s, 0.5),
        match_p99_ms=_percentile_ms(tally.match_s, 0.99),
        ttft_p50_ms=_percentile_ms(tally.ttft_s, 0.5),
        ttft_p99_ms=_percentile_ms(tally.ttft_s, 0.99),
        master_load=master,
        masters_needed=max(1, -int(-sum(loads[:masters]) // BUSY)) if world.shape.pool else 0,
        shard_spread=max(work) / statistics.mean(work) if any(work) else 1.0,
        egress_load=egress,
        gpu_load=gpu,
        bottleneck=max(named, key=named.__getitem__),
    )


def _stations(world: World) -> list[Any]:
    return [*world.desks, *world.egress, *world.ingress, *world.gpus]


def _percentile_ms(samples: Sequence[float], share: float) -> float:
    ordered = sorted(samples)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
