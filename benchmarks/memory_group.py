"""Bytes of master memory a block at TP 8: the process's own resident size, no estimate."""

from __future__ import annotations

from collections.abc import Iterator

from moonpool.benchmarks.opponents import MOONCAKE_ENVIRONMENT, MooncakeMaster, mooncake_is_here
from moonpool.benchmarks.paper_node import filled
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.prompts import chain, lookup_spec
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.servers import MasterServer, resident_bytes
from moonpool.benchmarks.trials import Samples
from moonpool.benchmarks.workers import Worker

WORLD = 8
CHAIN_BLOCKS = 5000
SEGMENT_KEY_BYTES = 192


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """One case: memory_tp8. Mooncake has a key a block and rank, and is asked for a tenth as many."""
    samples = Samples("memory_tp8", "memory", "bytes/block")
    progress.step("moonpool")
    samples.add("moonpool", [_moonpool(scale.memory_blocks)], verified=True)
    if mooncake_is_here():
        progress.step("mooncake")
        samples.add("mooncake", [_mooncake(max(CHAIN_BLOCKS, scale.memory_blocks // 10))], verified=True)
    return samples.results()


def _moonpool(blocks: int) -> float:
    with MasterServer() as master:
        before = resident_bytes(master.pid)
        chains: Iterator[list[bytes]] = (
            chain(f"chain-{index}", CHAIN_BLOCKS) for index in range(blocks // CHAIN_BLOCKS)
        )
        with filled(master.address, lookup_spec(WORLD), chains):
            return (resident_bytes(master.pid) - before) / blocks


def _mooncake(blocks: int) -> float:
    segment_bytes = max(64 << 20, blocks * WORLD * SEGMENT_KEY_BYTES)
    with MooncakeMaster() as master:
        options = {"master": master.address, "world": WORLD, "segment_bytes": segment_bytes}
        with Worker("mooncake", "mooncake", options, None, MOONCAKE_ENVIRONMENT) as owner:
            before = resident_bytes(master.pid)
            owner.ask("fill", first=0, chains=blocks // CHAIN_BLOCKS, blocks=CHAIN_BLOCKS)
            return (resident_bytes(master.pid) - before) / blocks
