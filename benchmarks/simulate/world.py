"""The simulated cluster in motion: sessions, engines, masters and cards, one event after the other."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

import xxhash

from moonpool.benchmarks.replay.families import BLOCK_TOKENS, Agents
from moonpool.benchmarks.simulate.costs import HASH_BYTES, Costs
from moonpool.benchmarks.simulate.pool import KEYSPACE, PaperPool
from moonpool.benchmarks.simulate.stations import Desk, PrefixCache, Station
from moonpool.schemas.runs import run_start, shard_of, split_runs
from moonpool.store_client.prefix import STRIDE_BLOCKS

WARM_TURNS_MAX = 40
START_S_MAX = 16.0
TICK_S = 1.0
LOCATION_BYTES = 14
ENTRY_BYTES = 96

Process = Iterator[float]
"""Something that goes on in the world: yields the times that it waits for."""

Part = tuple[int, int, int]
"""(shard, position of the first block, blocks) of one run: in the engine's blocks."""


ROUND_ROBIN, STICKY = ROUTINGS = ("round_robin", "sticky")


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster. One engine a host, its eight GPUs sharing the host's DRAM and one card. Sizes in blocks of 512
    tokens. `routing`: to any engine in turn, or `sticky`: a session stays with its engine."""

    engines: int
    sessions: int
    shards: int = 16
    masters: int = 1
    pool: bool = True
    host_blocks: int = 12_000
    cache_blocks: int = 2_000
    routing: str = ROUND_ROBIN


@dataclass(slots=True)
class Tally:
    """What was seen in one stretch of time, or in all of it. Latencies in s."""

    asked: int = 0
    cached: int = 0
    from_pool: int = 0
    seen_before: int = 0
    requests: int = 0
    match_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)

    @property
    def hit_ratio(self) -> float:
        """Blocks that weren't computed, over all asked for."""
        return (self.cached + self.from_pool) / max(1, self.asked)

    @property
    def ceiling(self) -> float:
        """The same with endless memory everywhere."""
        return self.seen_before / max(1, self.asked)


class World:
    """Runs until a time. Deterministic for a seed and costs."""

    def __init__(self, shape: Shape, costs: Costs, seed: int = 0) -> None:
        self.shape, self.costs = shape, costs
        self._random = Random(f"simulate {seed}")
        self._agents = Agents(self._random)
        self.pool = PaperPool(shape.engines, shape.host_blocks)
        self.desks = [Desk(costs.slice_s) for _ in range(shape.masters)]
        self.shard_work_s = [0.0] * shape.shards
        self.egress = [Station() for _ in range(shape.engines)]
        self.ingress = [Station() for _ in range(shape.engines)]
        self.gpus = [Station() for _ in range(shape.engines)]
        self._caches = [PrefixCache(shape.cache_blocks) for _ in range(shape.engines)]
        self._seen: set[bytes] = set()
        self.now_s = 0.0
        self._waiting: list[tuple[float, int, Process]] = []
        self._ticket = count()
        self._turn = count()
        self.tally = Tally()
        self._real_blocks = BLOCK_TOKENS // costs.block_tokens
        for number in range(shape.sessions):
            self.begin(self._session(number))
        self.begin(self._ticks())

    # ------------------------------------------------------------ time

    def begin(self, process: Process) -> None:
        """Lets a process run until it first waits, and on from there when its time has come."""
        until_s = next(process, None)
        if until_s is not None:
            heapq.heappush(self._waiting, (until_s, next(self._ticket), process))

    def run(self, until_s: float) -> None:
        """Lets everything happen up to a time."""
        while self._waiting and self._waiting[0][0] <= until_s:
            self.now_s, _, process = heapq.heappop(self._waiting)
            self.begin(process)
        self.now_s = until_s

    def _ticks(self) -> Process:
        while True:
            yield self.now_s + TICK_S
            for source, target, blocks in self.pool.tick(self.now_s):
                self._carry(source, target, blocks)

    # ------------------------------------------------------------ sessions

    def _session(self, number: int) -> Process:
        """One seat: a session after the other. The first is somewhere in its life, and what it said lies in the pool."""
        turns = self._agents.session()
        chain: list[bytes] = []
        for _, (blocks, _, _) in zip(range(self._random.randrange(WARM_TURNS_MAX)), turns, strict=False):
            chain = _hashes(blocks)
        if chain:
            self._seen.update(chain)
            home = number % self.shape.engines
            self._caches[home].use(chain)
            if self.shape.pool:
                self.pool.preload(chain, self.pool.hosts[home])
        while True:
            yield self.now_s + self._random.uniform(0, START_S_MAX)
            for blocks, _, pause_s in turns:
                yield from self._serve(self._route(number), _hashes(blocks))
                yield self.now_s + pause_s
            turns = self._agents.session()

    def _route(self, number: int) -> int:
        hosts = self.pool.hosts
        start = number if self.shape.routing == STICKY else next(self._turn)
        return next(n % len(hosts) for n in range(start, start + len(hosts)) if hosts[n % len(hosts)].alive)

    def _serve(self, engine: int, chain: list[bytes]) -> Process:
        """One request: what the engine has, what the pool has, the rest is computed, and what is new is saved."""
        asked_s, tally = self.now_s, self.tally
        cached = hit = self._caches[engine].prefix(chain)
        tally.requests += 1
        tally.asked += len(chain)
        tally.cached += cached
        tally.seen_before += sum(name in self._seen for name in chain)
        self._seen.update(chain)
        if self.shape.pool:
            hit = max(cached, self.pool.match(chain, self.pool.hosts[engine], self.now_s))
            tally.from_pool += hit - cached
            yield from self._match(chain, hit)
            tally.match_s.append(self.now_s - asked_s)
            if hit > cached:
                yield from self._load(engine, chain, cached, hit)
        tokens = (len(chain) - hit) * BLOCK_TOKENS + 1
        yield self.gpus[engine].take(self.now_s, tokens / self.costs.prefill_tokens_s)
        tally.ttft_s.append(self.now_s - asked_s)
        self._caches[engine].use(chain)
        if self.shape.pool and hit < len(chain) and self.pool.hosts[engine].alive:
            self._save(engine, chain)

    # ------------------------------------------------------------ the pool's part

    def _parts(self, chain: Sequence[bytes], first: int, count: int) -> dict[int, list[Part]]:
        """Those blocks of 512 tokens as the index has them, in the engine's blocks, cut at the boundaries of runs: by
        the master that is asked for them in one message."""
        per = self._real_blocks
        parts: dict[int, list[Part]] = {}
        for at, blocks in split_runs(first * per, count * per):
            root = run_start(at)
            name = chain[root // per] + (root % per).to_bytes(8, "little")
            shard = shard_of(KEYSPACE, name, self.shape.shards)
            parts.setdefault(shard % len(self.desks), []).append((shard, at, blocks))
        return parts

    def _match(self, chain: Sequence[bytes], hit: int) -> Process:
        """One round trip to all masters, and another one where the prefix ends in between."""
        costs, asked_s = self.costs, self.now_s
        answered_s = asked_s
        for master, parts in self._parts(chain, 0, len(chain)).items():
            sent_bytes = sum(costs.probe_bytes(at, blocks) for _, at, blocks in parts)
            work_s = costs.match.of(_blocks(parts)) + costs.wire_s(sent_bytes)
            self._note(parts, work_s)
            answered_s = max(answered_s, self.desks[master].first(asked_s, work_s) + costs.round_trip_s)
        yield answered_s
        if hit < len(chain):
            work_s = costs.match.of(STRIDE_BLOCKS) + costs.wire_s(costs.probe_bytes(0, STRIDE_BLOCKS))
            for master, parts in self._parts(chain, hit, 1).items():
                self._note(parts, work_s)
                yield self.desks[master].first(self.now_s, work_s) + costs.round_trip_s

    def _load(self, engine: int, chain: Sequence[bytes], cached: int, hit: int) -> Process:
        """Asks where the blocks lie, and fetches them over the hosts' cards."""
        host, costs = self.pool.hosts[engine], self.costs
        self.pool.renew(chain, hit, host, self.now_s)
        located_s = self.now_s
        for master, parts in self._parts(chain, cached, hit - cached).items():
            blocks = _blocks(parts)
            locate_s = sum(costs.locate.of(run) for _, _, run in parts) + costs.wire_s(
                LOCATION_BYTES * blocks
            )
            work_s = costs.renew.of(1) + costs.wire_s(HASH_BYTES) + costs.ranks * locate_s
            self._note(parts, work_s)
            located_s = max(located_s, self.desks[master].take(self.now_s, work_s) + costs.round_trip_s)
        yield located_s
        loaded_s = self.now_s
        for source, blocks in self.pool.locate(chain, cached, hit, host, self.now_s).items():
            if source != engine:
                loaded_s = max(loaded_s, self._carry(source, engine, blocks))
        yield loaded_s

    def _carry(self, source: int, target: int, blocks: int) -> float:
        """When these blocks have come from one host's card to another's."""
        work_s = blocks * BLOCK_TOKENS * self.costs.kv_bytes_token / self.costs.network_bytes_s
        sent_s = self.egress[source].take(self.now_s, work_s)
        return max(sent_s, self.ingress[target].take(self.now_s, work_s))

    def _save(self, engine: int, chain: Sequence[bytes]) -> None:
        """Nobody waits for it."""
        written = self.pool.put(chain, self.pool.hosts[engine], self.now_s)
        if not written:
            return
        for master, parts in self._parts(chain, written[0], written[-1] + 1 - written[0]).items():
            blocks = _blocks(parts)
            put_s = self.costs.put_start.of(blocks) + self.costs.wire_s(HASH_BYTES * blocks)
            work_s = self.costs.ranks * put_s + self._report_s(blocks)
            self._note(parts, work_s)
            self.desks[master].later(self.now_s, work_s)

    def _report_s(self, blocks: int) -> float:
        shards_of_blocks = self.costs.ranks * blocks
        return self.costs.report.block_s * shards_of_blocks + self.costs.wire_s(
            ENTRY_BYTES * shards_of_blocks
        )

    def _note(self, parts: Sequence[Part], work_s: float) -> None:
        """Which shards the work was for, by their blocks."""
        whole = _blocks(parts)
        for shard, _, blocks in parts:
            self.shard_work_s[shard] += work_s * blocks / whole

    # ------------------------------------------------------------ storms

    def lose_hosts(self, numbers: Sequence[int]) -> None:
        """Hosts go down, with the engines on them."""
        for number in numbers:
            self.pool.lose(self.pool.hosts[number], self.now_s)
            self._caches[number] = PrefixCache(self.shape.cache_blocks)

    def rejoin_hosts(self, numbers: Sequence[int]) -> None:
        """They are back, and their nodes have kept their memory."""
        for number in numbers:
            blocks = self.pool.join(self.pool.hosts[number], self.now_s)
            work_s = self._report_s(blocks * self._real_blocks) / self.shape.shards
            for shard in range(self.shape.shards):  # an inventory lies evenly over all of them
                self.shard_work_s[shard] += work_s
                self.desks[shard % len(self.desks)].later(self.now_s, work_s)


def _blocks(parts: Sequence[Part]) -> int:
    return sum(blocks for _, _, blocks in parts)


def _hashes(blocks: Sequence[int]) -> list[bytes]:
    return [xxhash.xxh3_128_digest(block.to_bytes(8, "little")) for block in blocks]
