"""How much of an 80K-token prompt (5,000 blocks of 16 tokens) is there, at a master that holds 0.3 million blocks.

Names: lookup_tp<world>_<hit|half|miss>_<clients>c, lookup_tp1_5m_<...> where 5 million are held, and with _cpu what a
lookup costs the master's processor. Mooncake answers for one key a block and rank; making its strings isn't counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from moonpool.benchmarks.opponents import MOONCAKE_ENVIRONMENT, MooncakeMaster, mooncake_is_here
from moonpool.benchmarks.paper_node import filled
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.prompts import chain, lookup_spec
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.servers import MasterServer, cpu_s
from moonpool.benchmarks.trials import Samples, rounds
from moonpool.benchmarks.workers import Worker

KEY_BYTES = 512
"""Of Mooncake's segment for one tiny value."""

SEGMENT_KEYS = 500_000
"""In one of Mooncake's segments: with about a million it takes no more, however large it is, and evicts."""

CALLS = {"moonpool": 400, "mooncake": 3}
"""Calls a round and client: about as long a time for both, and for ours so many that the first ones, for which all processes
have to be woken, aren't what the 99th percentile is made of."""


class Side:
    """A master with its clients."""

    def __init__(self, name: str, pid: int, clients: Sequence[Worker]) -> None:
        self.name, self.pid, self.clients = name, pid, clients

    @property
    def died(self) -> bool:
        """Whether a client has: see Worker."""
        return any(client.died for client in self.clients)

    def lookup(self, clients: int, calls: int) -> tuple[list[float], bool, float]:
        """(microseconds of each call, whether all answers were right, the master's own of one call)."""
        before_s = cpu_s(self.pid)
        for client in self.clients[:clients]:
            client.send("lookup", calls=calls)
        answers = [client.receive() for client in self.clients[:clients]]
        spent_us = (cpu_s(self.pid) - before_s) * 1e6 / (clients * calls)
        samples = [seconds * 1e6 for answer in answers for seconds in answer["samples"]]
        return samples, all(answer["verified"] for answer in answers), spent_us


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """All lookup cases."""
    results = []
    for world, blocks, name in (
        (1, scale.lookup_blocks, "lookup_tp1"),
        (8, scale.lookup_blocks, "lookup_tp8"),
        (1, scale.lookup_blocks_many, "lookup_tp1_5m"),
    ):
        if not blocks:
            continue
        with ExitStack() as stack:
            progress.step(f"{name}: filling both masters")
            sides = _sides(stack, world, blocks // scale.prompt_blocks, scale)
            for shape, kept in (("hit", 1.0), ("half", 0.5), ("miss", 0.0)):
                for side in sides:
                    for seed, client in enumerate(side.clients):
                        client.ask(
                            "prepare",
                            chains=blocks // scale.prompt_blocks,
                            kept=int(kept * scale.prompt_blocks),
                            blocks=scale.prompt_blocks,
                            seed=seed,
                        )
                for case, clients in ((f"{name}_{shape}_1c", 1), (f"{name}_{shape}_8c", scale.clients)):
                    progress.step(case)
                    results += _case(scale, sides, case, clients)
    return results


def _sides(stack: ExitStack, world: int, chains: int, scale: Scale) -> list[Side]:
    master = stack.enter_context(MasterServer())

    def all_chains() -> Iterator[list[bytes]]:
        return (chain(f"chain-{index}", scale.prompt_blocks) for index in range(chains))

    stack.enter_context(filled(master.address, lookup_spec(world), all_chains()))
    options: dict[str, object] = {"master": master.address, "world": world}
    ours = [stack.enter_context(Worker("moonpool", "moonpool", options, None)) for _ in range(scale.clients)]
    sides = [Side("moonpool", master.pid, ours)]
    if mooncake_is_here():
        other = stack.enter_context(MooncakeMaster(flags=["--allocation_strategy=local_first"]))
        options = {"master": other.address, "world": world}
        _fill(stack, options, world, chains, scale.prompt_blocks)
        theirs = [
            stack.enter_context(Worker("mooncake", "mooncake", options, None, MOONCAKE_ENVIRONMENT))
            for _ in range(scale.clients)
        ]
        sides.append(Side("mooncake", other.pid, theirs))
    return sides


def _fill(stack: ExitStack, options: dict[str, object], world: int, chains: int, prompt_blocks: int) -> None:
    """Mooncake's keys, in as many segments as they need, each of a process that stores its part of the chains."""
    each = max(1, SEGMENT_KEYS // (prompt_blocks * world))
    for first in range(0, chains, each):
        mine = min(each, chains - first)
        segment = {"segment_bytes": max(64 << 20, mine * prompt_blocks * world * KEY_BYTES)}
        holder = Worker("mooncake", "mooncake", options | segment, None, MOONCAKE_ENVIRONMENT)
        stack.enter_context(holder).ask("fill", first=first, chains=mine, blocks=prompt_blocks)


def _case(scale: Scale, sides: list[Side], name: str, clients: int) -> list[Result]:
    times = Samples(name, "lookup", "us")
    costs = Samples(f"{name}_cpu", "lookup", "us CPU")
    for number, order in rounds(scale, sides):
        for side in order:
            calls = 2 if scale.quick else CALLS[side.name] // (1 if clients == 1 else 2) or 1
            samples, verified, spent_us = side.lookup(clients, calls)
            if number >= 0 and not side.died:
                times.add(side.name, samples, verified)
                costs.add(side.name, [spent_us], verified)
    return [*times.results(), *costs.results()]
