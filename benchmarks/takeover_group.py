"""How soon a master that was killed answers again, with a million blocks in its file store, and over etcd where that is
installed: there the end of its lease is waited for.

Names: takeover_first_hit (kill to the first match, the node coming back at once), takeover_log (to all rows of the entry
log), takeover_all (to the end of the node's inventory); takeover_etcd_first_hit and so on. Each counts the start of the
process.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from moonpool.benchmarks.opponents import EtcdServer
from moonpool.benchmarks.paper_node import PaperNode, chain_entries
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.prompts import chain, lookup_spec
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.servers import Server
from moonpool.benchmarks.trials import Samples
from moonpool.schemas.errors import DeadlineExceeded
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    GetStatus,
    Hello,
    Match,
    Matched,
    RegisterKeyspace,
    StatusReport,
    decode_from_master,
)
from moonpool.store_client.rpc.connection import RpcConnection

WAIT_S = 300.0
Facts = dict[str, int | float | str]


def run(scale: Scale, progress: Progress, wanted: frozenset[str]) -> list[Result]:
    """Three cases of one restart for each store."""
    blocks = scale.memory_blocks // scale.prompt_blocks * scale.prompt_blocks
    results = []
    for kind in ("", "etcd_") if shutil.which("etcd") else ("",):
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="moonpool-bench-"))
            store = f"file:{folder}/state"
            if kind:
                store = f"etcd://127.0.0.1:{stack.enter_context(EtcdServer(folder)).port}"
            progress.step(f"filling a master and its log in {store.partition(':')[0]}")
            segment = _fill(store, blocks, scale.prompt_blocks)
            progress.step("the next one takes over")
            times = _take_over(store, blocks, scale.prompt_blocks, segment)
        for case, seconds in times.items():
            samples = Samples(f"takeover_{kind}{case}", "takeover", "ms")
            samples.add("moonpool", [seconds * 1e3], verified=True)
            results += samples.results()
    return results


def _master(store: str) -> Server:
    values = {"store": store, "shards": 1, "suspect_after_s": 600, "log_every_s": 1}
    words = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    return Server("moonpool.store_client.cli.main", ["master", "--port", "0", "--verbose", *words])


def _serving(address: str) -> RpcConnection:
    """A client, as soon as the master has its shard."""
    client = RpcConnection(address, Hello(PROTOCOL_VERSION, "client", "bench"), decode_from_master)
    _until(client, lambda facts: facts["shards_owned"] == 1, "its shard")
    return client


def _facts(client: RpcConnection) -> Facts:
    reply = client.call(GetStatus(), time.monotonic() + 60)
    assert isinstance(reply, StatusReport)
    return reply.facts


def _until(client: RpcConnection, holds: Callable[[Facts], bool], what: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while not holds(_facts(client)):
        if time.monotonic() > end_s:
            raise DeadlineExceeded(peer="the master", what=what, timeout_s=WAIT_S)
        time.sleep(0.02)


def _chains(blocks: int, length: int) -> Iterator[list[bytes]]:
    return (chain(f"chain-{index}", length) for index in range(blocks // length))


def _inventory(node: PaperNode, blocks: int, length: int) -> None:
    spec = lookup_spec(1)
    for index, hashes in enumerate(_chains(blocks, length)):
        for entries in chain_entries(spec.digest(), hashes, 1, index * length):
            node.report([entries])
    node.finish_inventory()


def _fill(store: str, blocks: int, length: int) -> bytes:
    """Returns the node's segment. The master is killed when its log is written."""
    with _master(store) as master:
        client = _serving(master.address)
        _until(client, lambda facts: facts["log_shards_read"] == 1, "its empty log")
        client.call(RegisterKeyspace(lookup_spec(1)), time.monotonic() + 60)
        node = PaperNode(master.address, lookup_spec(1))
        _inventory(node, blocks, length)
        _until(client, lambda facts: int(facts["log_records_behind"]) > 0, "its entry log")
        master.kill()
        node.close()
        client.close()
    return node.segment


def _take_over(store: str, blocks: int, length: int, segment: bytes) -> dict[str, float]:
    began_s = time.monotonic()
    times: dict[str, float] = {}
    with _master(store) as master:
        client = _serving(master.address)
        node = PaperNode(master.address, lookup_spec(1), segment)
        first = b"".join(chain("chain-0", length)[:64])
        while not _ready(client, first):
            time.sleep(0.005)
        times["first_hit"] = time.monotonic() - began_s
        _until(client, lambda facts: int(facts["rows"]) >= blocks, "all rows of the log")
        times["log"] = time.monotonic() - began_s
        _inventory(node, blocks, length)
        _until(client, lambda facts: facts["shards_recovering"] == 0, "all inventories")
        times["all"] = time.monotonic() - began_s
        assert all(_ready(client, b"".join(one[:64])) == 64 for one in _chains(blocks, length))
        node.close()
        client.close()
    return times


def _ready(client: RpcConnection, hashes: bytes) -> int:
    reply = client.call(Match(lookup_spec(1).digest(), [(0, hashes)]), time.monotonic() + 60)
    assert isinstance(reply, Matched)
    return reply.ready[0]
