"""The master is killed and another one started in its place, while nodes and clients live on.

Names: recovery_puts, seconds from the start until a put goes through; recovery_found, seconds until all objects from
before are found again; recovery_lost, how many never are.
"""

from __future__ import annotations

from contextlib import ExitStack

from moonpool.benchmarks.cast import cast
from moonpool.benchmarks.opponents import MooncakeMaster, mooncake_is_here
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.servers import MasterServer
from moonpool.benchmarks.trials import Samples

OBJECT_BYTES = 1024
FILL_BATCH = 500


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """All recovery cases."""
    puts = Samples("recovery_puts", "recovery", "s")
    found = Samples("recovery_found", "recovery", "s")
    lost = Samples("recovery_lost", "recovery", "% lost")
    for name in ("moonpool", *(["mooncake"] if mooncake_is_here() else [])):
        for number in range(scale.recoveries):
            progress.step(f"{name}, {number + 1} of {scale.recoveries}")
            answer = _recover(scale, name)
            if answer is None:
                continue
            share = 100 * (1 - answer["found"] / scale.recovery_objects)
            puts.add(name, [answer["puts_s"]], verified=True)
            lost.add(name, [share], verified=True)
            if answer["found"] == scale.recovery_objects:
                found.add(name, [answer["found_s"]], verified=True)
    return [*puts.results(), *found.results(), *lost.results()]


def _recover(scale: Scale, name: str) -> dict[str, float] | None:
    """None: its client has died."""
    with cast(scale.churn_pool_bytes, min(scale.arena_bytes, 64 << 20)) as members, ExitStack() as stack:
        server, worker = members.with_master(name)
        worker.ask("fill", prefix="old-", count=scale.recovery_objects, size=OBJECT_BYTES, batch=FILL_BATCH)
        port = server.address.rpartition(":")[2]
        server.kill()
        stack.enter_context(MasterServer(port) if name == "moonpool" else MooncakeMaster(int(port)))
        answer = worker.ask("recover", prefix="old-", count=scale.recovery_objects, seconds=scale.recovery_s)
        return None if worker.died else answer
