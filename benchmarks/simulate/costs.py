"""What things cost in the simulation: the master's own work as measured here, the network as configured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from moonpool.benchmarks.paper_node import chain_entries, node_info
from moonpool.master.core import MasterCore, Origin
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Announce,
    InventoryEnd,
    Locate,
    Match,
    Message,
    PutItem,
    PutStart,
    Renew,
    Report,
    RunSlice,
)
from moonpool.schemas.runs import FIRST_BOUNDARY, STRIDE, split_runs
from moonpool.store_client.prefix import STRIDE_BLOCKS

HASH_BYTES = 32
CHAIN_BLOCKS = 4096
FRESH_BLOCKS = 512
REPEATS = 15
RANKS = 8


@dataclass(frozen=True, slots=True)
class PerBlock:
    """A cost that grows with the number of blocks: seconds for the call, and for each block of it."""

    call_s: float
    block_s: float

    def of(self, blocks: float) -> float:
        """Seconds for one call."""
        return self.call_s + self.block_s * blocks

    @classmethod
    def through(cls, whole_s: float, half_s: float, half_blocks: int) -> PerBlock:
        """From what a call of twice `half_blocks` takes and one of so many. Neither part is negative, whatever noise says."""
        block_s = max(0.0, whole_s - half_s) / half_blocks
        return cls(max(0.0, half_s - block_s * half_blocks), block_s)


@dataclass(frozen=True, slots=True)
class Costs:
    """`message_s`: a server's share of one small message (58,000 a second on one core). The rest: a network of a
    data centre, one 200 Gb/s card a host, and an engine of eight GPUs on a model of some 70 billion parameters."""

    match: PerBlock
    locate: PerBlock
    """Of one run."""
    renew: PerBlock
    put_start: PerBlock
    report: PerBlock
    """Per committed shard of a block, not per block."""
    message_s: float = 17e-6
    stream_bytes_s: float = 2.5e9
    """How fast one connection of a master moves bytes."""
    round_trip_s: float = 50e-6
    slice_s: float = 2e-3
    """The longest that background work holds a master before a match gets its turn."""
    network_bytes_s: float = 22e9
    kv_bytes_token: int = 160 * 1024
    prefill_tokens_s: float = 12_000.0
    block_tokens: int = 16
    ranks: int = RANKS

    @staticmethod
    def probe_bytes(first: int, blocks: int) -> float:
        """What the first of a match's two messages sends for one run's part."""
        return HASH_BYTES * (blocks if first < FIRST_BOUNDARY else 1 + blocks / STRIDE_BLOCKS)

    def wire_s(self, size_bytes: float) -> float:
        """A message's way through a master's connection."""
        return self.message_s + size_bytes / self.stream_bytes_s


def calibrate() -> Costs:
    """Measures the real core on this machine, in about a second. Medians of thread time."""
    bench = _Bench()
    half = CHAIN_BLOCKS // 2
    match, match_half = bench.cost(bench.match(CHAIN_BLOCKS)), bench.cost(bench.match(half))
    locate, locate_half = bench.cost(bench.locate(STRIDE)), bench.cost(bench.locate(STRIDE // 2))
    renew = bench.cost(bench.renew())
    put, put_half = bench.puts(FRESH_BLOCKS), bench.puts(FRESH_BLOCKS // 2)
    report, report_half = bench.reports(FRESH_BLOCKS), bench.reports(FRESH_BLOCKS // 2)
    return Costs(
        match=PerBlock.through(match, match_half, half),
        locate=PerBlock.through(locate, locate_half, STRIDE // 2),
        renew=PerBlock(renew, 0.0),
        put_start=PerBlock.through(put, put_half, FRESH_BLOCKS // 2),
        report=PerBlock.through(report, report_half, FRESH_BLOCKS * RANKS // 2),
    )


class _Bench:
    """One real core with a chain in it."""

    def __init__(self) -> None:
        self._spec = KeyspaceSpec(
            kind=Kind.CHAINED, name="cost", shard_bytes=(1 << 16,) * RANKS, hash_bytes=HASH_BYTES
        )
        self._keyspace = self._spec.digest()
        self._core = MasterCore(1, 1, MasterSettings())
        self._segment = b"cost"
        self._origin = Origin("nowhere", self._spec.tenant, self._segment)
        self._sequence = 0
        self._fresh = 0
        self._ask(Announce(node_info(self._segment), [self._spec], 0))
        self._chain = self._new_chain(CHAIN_BLOCKS)
        self._report_chain(self._chain, 0)
        self._ask(self._message([InventoryEnd()]))

    def _new_chain(self, blocks: int) -> list[bytes]:
        self._fresh += 1
        start = self._fresh << 32
        # A fixed odd factor spreads the numbers over all bytes, as hashes are.
        factor = 0x9E3779B97F4A7C15F39CC0605CEDC8341082276BF3A27251F86C6A11D0C18E95
        return [((start + n) * factor % (1 << 256)).to_bytes(HASH_BYTES, "little") for n in range(blocks)]

    def _ask(self, message: Message) -> Message:
        return self._core.handle(message, 1.0, self._origin).reply

    def _message(self, ops: list) -> Report:  # type: ignore[type-arg]  # ops of any kind
        message = Report(self._segment, 1, self._sequence, ops)
        self._sequence += 1
        return message

    def _report_chain(self, chain: list[bytes], first_slot: int) -> None:
        for op in chain_entries(self._keyspace, chain, RANKS, first_slot):
            self._ask(self._message([op]))

    def cost(self, message: Message) -> float:
        """Median thread time of asking this again and again, in s."""
        return _median_s(lambda: self._ask(message), lambda: None)

    def match(self, blocks: int) -> Match:
        """All blocks are ready."""
        runs = split_runs(0, blocks)
        return Match(self._keyspace, [(at, b"".join(self._chain[at : at + n])) for at, n in runs])

    def locate(self, blocks: int) -> Locate:
        """One rank of some blocks of one run."""
        run = RunSlice(self._chain[STRIDE + blocks - 1], STRIDE, blocks)
        return Locate(self._keyspace, 0, [run])

    def renew(self) -> Renew:
        """One row."""
        return Renew(self._keyspace, self._chain[0])

    def puts(self, blocks: int) -> float:
        """Fresh blocks each time, in s."""
        made: list[PutStart] = []

        def make() -> None:
            chain = self._new_chain(blocks)
            items = [
                PutItem(
                    self._keyspace, 0, at, chain[at - 1] if at else b"", b"".join(chain[at : at + n]), 65536
                )
                for at, n in split_runs(0, blocks)
            ]
            made.append(PutStart(items))

        return _median_s(lambda: self._ask(made[-1]), make)

    def reports(self, blocks: int) -> float:
        """Fresh commits each time, in s."""
        made: list[Report] = []

        def make() -> None:
            chain = self._new_chain(blocks)
            slot = CHAIN_BLOCKS + self._fresh * FRESH_BLOCKS
            made.append(self._message(list(chain_entries(self._keyspace, chain, RANKS, slot))))

        return _median_s(lambda: self._ask(made[-1]), make)


def _median_s(work: Callable[[], object], prepare: Callable[[], object]) -> float:
    samples = []
    for _ in range(REPEATS):
        prepare()
        start_ns = time.thread_time_ns()
        work()
        samples.append(time.thread_time_ns() - start_ns)
    return sorted(samples)[REPEATS // 2] / 1e9
