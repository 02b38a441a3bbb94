"""Bytes of master memory a block, for a million blocks at TP 8: the process's own resident size, no estimate."""

from __future__ import annotations

from moonpool.benchmarks.lookup_group import bench_spec, chain
from moonpool.benchmarks.paper_node import PaperNode, chain_entries
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.servers import MasterServer, resident_bytes

BLOCKS = 1_000_000
WORLD = 8


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """One case: memory_tp8."""
    spec = bench_spec(WORLD)
    with MasterServer() as master:
        node = PaperNode(master.address, spec)
        before = resident_bytes(master.pid)
        for index in range(BLOCKS // 5000):
            for entries in chain_entries(spec.digest(), chain(f"chain-{index}"), WORLD, index * 5000):
                node.report([entries])
        node.finish_inventory()
        after = resident_bytes(master.pid)
        node.close()
    a_block = (after - before) / BLOCKS
    return [Result("memory_tp8", "memory", "moonpool", a_block, a_block, "bytes/block", 1, verified=True)]
