"""A client that wants single objects quickly, beside one that never pauses.

Names: mixed_<put|get>_4k_greedy: beside a client that moves batches of 1 MiB objects of its own;
mixed_<put|get>_4k_evicting: in a full pool, beside a client whose every put evicts. mixed_rate_<greedy|evicting>: how
many objects the other one gets through meanwhile, since a quiet client has it easy beside one that hardly works.

The quiet client goes on for as long as the other one does: by the time of some thirty calls one that moves its bytes over a
socket has not got through its first batch.
"""

from __future__ import annotations

from moonpool.benchmarks.cast import cast
from moonpool.benchmarks.churn_group import fill
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.trials import Samples, rounds
from moonpool.benchmarks.workers import Worker

OBJECT_BYTES = 4096
GREEDY_BYTES = {False: 1 << 20, True: 64 << 10}
BATCH = 16

CALLS_MAX = 20_000
"""Of the quiet client in one trial: its answer is one line."""


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """All mixed cases."""
    results = []
    with cast(scale.churn_pool_bytes, min(scale.arena_bytes, 128 << 20)) as members:
        pairs = members.pairs()
        for load in ("greedy", "evicting"):
            if load == "evicting":
                size = GREEDY_BYTES[scale.quick]
                fill(scale, progress, [quiet for quiet, _ in pairs], f"{size >> 10}k", size, BATCH)
            progress.step(f"one client beside a {load} one")
            results += _case(scale, pairs, load)
    return results


def _case(scale: Scale, pairs: list[tuple[Worker, Worker]], load: str) -> list[Result]:
    puts = Samples(f"mixed_put_4k_{load}", "mixed", "us")
    gets = Samples(f"mixed_get_4k_{load}", "mixed", "us")
    rates = Samples(f"mixed_rate_{load}", "mixed", "objects/s")
    partner = dict(pairs)
    for number, order in rounds(scale, [quiet for quiet, _ in pairs]):
        for quiet in order:
            size = GREEDY_BYTES[scale.quick]
            greedy = partner[quiet]
            if greedy.died:
                continue
            prefix = f"{load}-{number}-"
            greedy.send(
                "churn" if load == "evicting" else "put_and_remove",
                prefix=f"busy-{prefix}",
                size=size,
                batch=BATCH,
                seconds=scale.churn_s,
            )
            answer = quiet.ask(
                "puts_and_gets", prefix=prefix, size=OBJECT_BYTES, calls=CALLS_MAX, seconds=scale.churn_s
            )
            work = greedy.receive()
            if number >= 0 and not greedy.died:
                rates.add(quiet.name, [work["stored"] / work["seconds"]], work["verified"])
                for samples in (puts, gets):
                    seconds = answer["puts" if samples is puts else "gets"]
                    samples.add(quiet.name, [one * 1e6 for one in seconds], answer["verified"])
    return [*puts.results(), *gets.results(), *rates.results()]
