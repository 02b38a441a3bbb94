"""What a block costs in memory, and a call in processor time. Only memory is asserted: times depend on the machine.

`pytest -s` shows the numbers; MOONPOOL_SOAK=1 uses a million blocks.
"""

from __future__ import annotations

import gc
import hashlib
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from support.node_info import node_info
from support.soak import SOAK

from moonpool.master.core import MasterCore, Origin
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Announce,
    Entries,
    Heartbeat,
    InventoryEnd,
    Locate,
    Match,
    Matched,
    Need,
    Probe,
    Probed,
    PutItem,
    PutStart,
    Renew,
    Report,
    RunSlice,
    Victims,
)
from moonpool.schemas.packed import pack_u16, pack_u32, pack_u64
from moonpool.schemas.runs import split_runs
from moonpool.store_client.prefix import PrefixSearch

WORLD = 8
CHAIN_BLOCKS = 5000
BLOCKS = 1_000_000 if SOAK > 1 else 50_000
SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="m", shard_bytes=(65536,) * WORLD)
KEYSPACE = SPEC.digest()
INFO = node_info("n", segment=b"n" * 8, host="h", capacity_bytes=1 << 50, page_bytes=64 << 20)
ORIGIN = Origin("h", "default", None)


def chain_of(number: int) -> list[bytes]:
    return [hashlib.sha256(b"%d %d" % (number, i)).digest() for i in range(CHAIN_BLOCKS)]


def entries(hashes: list[bytes], first: int, count: int, rank: int, slot: int) -> Entries:
    parents = [hashes[i - 1] if i else bytes(32) for i in range(first, first + count)]
    return Entries(
        KEYSPACE,
        pack_u16([rank] * count),
        pack_u32(range(first, first + count)),
        b"".join(hashes[first : first + count]),
        b"".join(parents),
        pack_u32(np.arange(slot, slot + count, dtype=np.uint32)),
        pack_u64(np.arange(slot, slot + count, dtype=np.uint64)),
        pack_u64([65536] * count),
    )


class Filled:
    """A master that knows `blocks` blocks on one node."""

    def __init__(self, blocks: int) -> None:
        self.core = MasterCore(1, 7, MasterSettings())
        self.now_s = 1000.0
        self.sequence = 0
        self.core.handle(Announce(INFO, [SPEC], 0), self.now_s, ORIGIN)
        self.report(InventoryEnd())
        for number in range(blocks // CHAIN_BLOCKS):
            self.last = chain_of(number)
            for first in range(0, CHAIN_BLOCKS, 500):
                for rank in range(WORLD):
                    self.report(entries(self.last, first, 500, rank, number * CHAIN_BLOCKS + first))

    def report(self, *ops: Entries | InventoryEnd) -> None:
        self.core.handle(Report(INFO.segment, 1, self.sequence, list(ops)), self.now_s, ORIGIN)
        self.sequence += 1


def best_us(call: Callable[[], object], times: int = 30) -> float:
    taken = []
    for _ in range(times):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return min(taken) * 1e6


def test_a_block_costs_400_bytes_at_most() -> None:
    gc.collect()
    tracemalloc.start()
    filled = Filled(BLOCKS)
    gc.collect()
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The last chain's own list of hashes is the test's; its hashes are not: the index has copies of them.
    used_bytes -= sys.getsizeof(filled.last) + CHAIN_BLOCKS * sys.getsizeof(filled.last[0])
    per_block = used_bytes / BLOCKS
    print(f"\n{BLOCKS} blocks at world {WORLD}: {per_block:.0f} bytes a block")
    assert per_block <= 400


def test_times() -> None:
    filled = Filled(50_000)
    core, hashes = filled.core, filled.last
    runs = list(split_runs(0, CHAIN_BLOCKS))
    probe = PrefixSearch(SPEC, hashes).probe(-1)
    lost = hashes[: CHAIN_BLOCKS // 2] + chain_of(-2)[CHAIN_BLOCKS // 2 :]
    partly = PrefixSearch(SPEC, lost)

    def ask(message: Probe | Match | Locate | Renew | PutStart) -> object:
        return core.handle(message, filled.now_s, ORIGIN).reply

    reply = ask(probe)
    assert isinstance(reply, Probed)
    assert sum(reply.ready) == CHAIN_BLOCKS
    print(f"\nprobe of {CHAIN_BLOCKS} blocks, all ready: {best_us(lambda: ask(probe)):.0f} us")
    half = ask(partly.probe(-1))
    assert isinstance(half, Probed)
    total, gap = partly.gap(Probed(half.ready))
    assert gap is not None
    found = ask(gap)
    assert isinstance(found, Matched)
    assert total + sum(found.ready) == CHAIN_BLOCKS // 2
    print(f"match of the gap where half of them are ready: {best_us(lambda: ask(gap)):.0f} us")
    locate = Locate(KEYSPACE, 3, [RunSlice(hashes[first + count - 1], first, count) for first, count in runs])
    print(f"locate of one rank: {best_us(lambda: ask(locate)):.0f} us")
    renew = Renew(KEYSPACE, b"".join(hashes[first + count - 1] for first, count in runs), 1)
    print(f"renew of {len(runs)} runs: {best_us(lambda: ask(renew)):.0f} us")
    fresh = chain_of(-1)
    items = [
        PutItem(
            KEYSPACE,
            0,
            first,
            fresh[first - 1] if first else b"",
            b"".join(fresh[first : first + count]),
            65536,
        )
        for first, count in runs
    ]
    print(f"put_start of {CHAIN_BLOCKS} blocks: {best_us(lambda: ask(PutStart(items)), 1):.0f} us")
    began = time.process_time()
    for rank in range(WORLD):
        for first in range(0, CHAIN_BLOCKS, 500):
            filled.report(entries(fresh, first, 500, rank, 0))
    took_us = (time.process_time() - began) * 1e6
    print(f"commit of one rank of one block: {took_us / CHAIN_BLOCKS / WORLD:.2f} us")
    filled.now_s += 100
    core.handle(Heartbeat(INFO.segment, 7, 0), filled.now_s, ORIGIN)
    core.tick(filled.now_s)
    want = Need(INFO.segment, 7, 64 << 20)
    began = time.process_time()
    victims = core.handle(want, filled.now_s, ORIGIN).reply
    took_us = (time.process_time() - began) * 1e6
    assert isinstance(victims, Victims)
    rows = victims.freed_bytes / 65536 / WORLD
    print(f"need of {rows:.0f} blocks: {took_us:.0f} us, {took_us / rows:.1f} us a block")
    assert victims.freed_bytes >= 64 << 20
