"""The experiments of `moonpool simulate`, each a list of rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moonpool.benchmarks.simulate.costs import Costs
from moonpool.benchmarks.simulate.world import ROUND_ROBIN, Shape, Tally, World

SESSIONS_PER_ENGINE = 8
ROUTING_SESSIONS = 60
ROUTING_ENGINES = (1, 2, 4, 8, 16, 32, 60)
ROUTING_STRETCHES = 4
"""Sessions come back after some 16 s: without a pool it takes a while until every engine has met every session."""

STORM_SHARE = 0.2
SHORT_S, LONG_S = 15.0, 45.0
"""Below and above the 30 s after which a silent node is lost."""

BUSY = 0.7
"""Beyond this share of its time a queue's waits grow steeply."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate. `engines`: the sizes of `scale` and `storm`. `seconds`: of each stretch of time.
    `routing` of their requests: see Shape. The experiment `routing` compares by itself, under round-robin."""

    engines: Sequence[int]
    masters: int = 1
    shards: int = 16
    seconds: float = 30.0
    seed: int = 0
    routing: str = ROUND_ROBIN

    def world(self, costs: Costs, engines: int) -> World:
        """A cluster of that many engines, all of them busy."""
        shape = Shape(engines, engines * SESSIONS_PER_ENGINE, self.shards, self.masters, routing=self.routing)
        return World(shape, costs, self.seed)


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


def routing(costs: Costs, plan: Plan) -> Iterator[Row]:
    """The same sessions on more and more engines, round-robin, with the pool and without."""
    for number in ROUTING_ENGINES:
        for pool in (True, False):
            shape = Shape(number, ROUTING_SESSIONS, shards=1, pool=pool)
            world = World(shape, costs, plan.seed)
            yield _stretch(
                world, "routing", "pool" if pool else "no pool", 0.0, ROUTING_STRETCHES * plan.seconds
            )


def scale(costs: Costs, plan: Plan) -> Iterator[Row]:
    """Clusters of growing size."""
    for number in plan.engines:
        yield _stretch(plan.world(costs, number), "scale", "steady", 0.0, plan.seconds)


def storm(costs: Costs, plan: Plan) -> Iterator[Row]:
    """A fifth of the hosts goes down at once, and comes back with its memory before it is given up for lost; a
    tenth then stays away for longer, and comes back when its blocks have been forgotten."""
    for number in plan.engines:
        world = plan.world(costs, number)
        down = range(0, number, round(1 / STORM_SHARE))
        end_s = plan.seconds
        yield _stretch(world, "storm", "before", 0.0, end_s)
        for phase, span_s in (
            ("down", SHORT_S),
            ("back", plan.seconds),
            ("lost", LONG_S),
            ("again", plan.seconds),
        ):
            if phase in ("down", "lost"):
                world.lose_hosts(down)
            else:
                world.rejoin_hosts(down)
            yield _stretch(world, "storm", phase, end_s, end_s + span_s)
            end_s += span_s


EXPERIMENTS: dict[str, Callable[[Costs, Plan], Iterator[Row]]] = {
    "routing": routing,
    "scale": scale,
    "storm": storm,
}
"""Name and what makes its rows."""


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
    ingress, gpu = (
        max(loads[masters + hosts : masters + 2 * hosts]),
        statistics.mean(loads[masters + 2 * hosts :]),
    )
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
