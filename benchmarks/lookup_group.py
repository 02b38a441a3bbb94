"""Match of an 80K-token prompt (5,000 blocks of 16 tokens) at a master that holds 0.3 million blocks.

Names: lookup_tp<world>_<hit|half|miss>_<clients>c. Every answer is checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading

from moonpool.benchmarks.paper_node import PaperNode, chain_entries
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result, summarise
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.servers import MasterServer
from moonpool.schemas.keyspace import KeyspaceSpec, Kind

PROMPT_BLOCKS = 5000
CHAINS = 60
CALLS = 400


def bench_spec(world: int) -> KeyspaceSpec:
    """The keyspace of the lookups."""
    return KeyspaceSpec(
        kind=Kind.CHAINED, name=f"lookup-tp{world}", shard_bytes=(65536,) * world, block_tokens=16
    )


def chain(name: str, blocks: int = PROMPT_BLOCKS) -> list[bytes]:
    """Hashes that follow from a name; blocks of one chain differ, chains don't share any."""
    import hashlib

    stem = hashlib.sha256(name.encode()).digest()[:24]
    return [stem + index.to_bytes(8, "little") for index in range(blocks)]


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """All lookup cases."""
    results = []
    for world in (1, 8):
        with MasterServer() as master:
            spec = bench_spec(world)
            node = PaperNode(master.address, spec)
            for index in range(CHAINS):
                for entries in chain_entries(spec.digest(), chain(f"chain-{index}"), world, index * 5000):
                    node.report([entries])
            node.finish_inventory()
            stop = threading.Event()
            beats = threading.Thread(target=_beat, args=(node, stop))
            beats.start()
            try:
                for shape in ("hit", "half", "miss"):
                    results += [_case(master.address, world, shape, clients) for clients in (1, 8)]
            finally:
                stop.set()
                beats.join()
                node.close()
    return results


def _beat(node: PaperNode, stop: threading.Event) -> None:
    while not stop.wait(1.0):
        node.heartbeat(0)


def _case(address: str, world: int, shape: str, clients: int) -> Result:
    command = [sys.executable, "-m", "moonpool.benchmarks.lookup_client", address, str(world), shape]
    calls = str(CALLS if clients == 1 else CALLS // 2)
    workers = [
        subprocess.Popen(
            [*command, calls, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for index in range(clients)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    samples: list[float] = []
    verified = True
    for worker in workers:
        out, _ = worker.communicate(timeout=120)
        if worker.returncode:
            raise RuntimeError(f"lookup client ended with {worker.returncode}")
        answer = json.loads(out)
        samples += answer["samples_us"]
        verified = verified and answer["verified"]
    name = f"lookup_tp{world}_{shape}_{clients}c"
    return summarise(name, "lookup", "moonpool", samples, "us", verified)
