"""The simulated cluster in motion: sessions, engines, masters and cards, one event after the other."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

import xxhash

from moonpool.benchmarks.replay.families import BLOCK_TOKENS, Agents
from moonpool.benchmarks.replay.families import Session as Turns
from moonpool.benchmarks.simulate.costs import Costs
from moonpool.benchmarks.simulate.pool import HASH_BYTES, PaperPool
from moonpool.benchmarks.simulate.stations import Desk, PrefixCache, Station

WARM_TURNS_MAX = 40
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster. One engine a host, its eight GPUs sharing the host's DRAM and one card. Sizes in blocks of 512
    tokens. `routing`: round_robin, or sticky (a session stays with its engine)."""

    engines: int
    sessions: int
    shards: int = 16
    masters: int = 1
    pool: bool = True
    host_blocks: int = 12_000
    cache_blocks: int = 2_000
    routing: str = "round_robin"


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
        self.pool = PaperPool(shape.shards, shape.engines, shape.host_blocks)
        self.desks = [Desk(costs.slice_s) for _ in range(shape.masters)]
        self.shard_work_s = [0.0] * shape.shards
        self.egress = [Station() for _ in range(shape.engines)]
        self.ingress = [Station() for _ in range(shape.engines)]
        self.gpus = [Station() for _ in range(shape.engines)]
        self._caches = [PrefixCache(shape.cache_blocks) for _ in range(shape.engines)]
        self._seen: set[bytes] = set()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._ticket = count()
        self._turn = count()
        self.tally = Tally()
        self._real_blocks = BLOCK_TOKENS // costs.block_tokens
        for number in range(shape.sessions):
            self._open(number, warm=True)
        self.at(TICK_S, self._tick)

    # ------------------------------------------------------------ time

    def at(self, when_s: float, event: Callable[[float], None]) -> None:
        """Something will happen then."""
        heapq.heappush(self._events, (when_s, next(self._ticket), event))

    def run(self, until_s: float) -> None:
        """Lets everything happen up to a time."""
        while self._events and self._events[0][0] <= until_s:
            when_s, _, event = heapq.heappop(self._events)
            event(when_s)

    def _tick(self, now_s: float) -> None:
        self.pool.tick(now_s)
        self.at(now_s + TICK_S, self._tick)

    # ------------------------------------------------------------ sessions

    def _open(self, number: int, warm: bool, now_s: float = 0.0) -> None:
        """A new session; a warm one is somewhere in its life, and what it said so far lies in the pool."""
        turns = self._agents.session()
        skipped = self._random.randrange(WARM_TURNS_MAX) if warm else 0
        chain: list[bytes] = []
        for _, (blocks, _, _) in zip(range(skipped), turns, strict=False):
            chain = _hashes(blocks)
        if chain:
            self._seen.update(chain)
            home = number % self.shape.engines
            self._caches[home].use(chain)
            if self.shape.pool:
                self.pool.preload(chain, self.pool.hosts[home])
        self.at(now_s + self._random.uniform(0, 16), lambda when_s: self._ask(number, turns, when_s))

    def _ask(self, number: int, turns: Turns, now_s: float) -> None:
        turn = next(turns, None)
        if turn is None:
            self._open(number, warm=False, now_s=now_s)
            return
        blocks, _, pause_s = turn
        chain = _hashes(blocks)
        engine = self._route(number)
        cached = self._caches[engine].prefix(chain)
        self.tally.requests += 1
        self.tally.asked += len(chain)
        self.tally.cached += cached
        self.tally.seen_before += sum(name in self._seen for name in chain)
        self._seen.update(chain)
        hit, ready_s = self._fetch(engine, chain, cached, now_s) if self.shape.pool else (cached, now_s)
        self.tally.from_pool += hit - cached
        tokens = (len(chain) - hit) * BLOCK_TOKENS + 1
        done_s = self.gpus[engine].take(ready_s, tokens / self.costs.prefill_tokens_s)
        self.tally.ttft_s.append(done_s - now_s)
        self.at(done_s, lambda when_s: self._save(engine, chain, hit, when_s))
        self.at(done_s + pause_s, lambda when_s: self._ask(number, turns, when_s))

    def _route(self, number: int) -> int:
        alive = self.pool.hosts
        start = number if self.shape.routing == "sticky" else next(self._turn)
        for step in range(len(alive)):
            engine = (start + step) % len(alive)
            if alive[engine].alive:
                return engine
        raise AssertionError("every engine is dead")

    # ------------------------------------------------------------ the pool's part

    def _fetch(self, engine: int, chain: Sequence[bytes], cached: int, now_s: float) -> tuple[int, float]:
        """Match, then loads. Returns the blocks that are there and when they are."""
        host = self.pool.hosts[engine]
        per = self._real_blocks
        hit = max(cached, self.pool.match(chain, host, now_s))
        answered_s = now_s
        for shard, _, blocks in self.pool.runs(chain, 0, len(chain)):
            work_s = self.costs.match.of(blocks * per) + self.costs.wire_s(
                self.costs.match_bytes(blocks * per)
            )
            answered_s = max(answered_s, self._ask_master(shard, now_s, work_s))
        self.tally.match_s.append(answered_s - now_s)
        if hit == cached:
            return hit, answered_s
        self.pool.renew(chain, hit, host, now_s)
        for shard, _, blocks in self.pool.runs(chain, cached, hit - cached):
            work_s = self.costs.renew.of(1) + self.costs.wire_s(32)
            work_s += self.costs.ranks * (
                self.costs.locate.of(blocks * per) + self.costs.wire_s(14 * blocks * per)
            )
            self._ask_master(shard, answered_s, work_s)
        loaded_s = answered_s
        for source, blocks in self.pool.locate(chain, cached, hit, host, now_s).items():
            if source != engine:
                work_s = blocks * BLOCK_TOKENS * self.costs.kv_bytes_token / self.costs.network_bytes_s
                sent_s = self.egress[source].take(answered_s, work_s)
                loaded_s = max(loaded_s, sent_s, self.ingress[engine].take(answered_s, work_s))
        return hit, loaded_s

    def _save(self, engine: int, chain: Sequence[bytes], hit: int, now_s: float) -> None:
        self._caches[engine].use(chain)
        host = self.pool.hosts[engine]
        if not self.shape.pool or hit == len(chain) or not host.alive:
            return
        for shard, blocks in self.pool.put(chain, host, now_s).items():
            real = blocks * self._real_blocks
            put_s = self.costs.put_start.of(real) + self.costs.wire_s(32 * real)
            self._behind(shard, now_s, self.costs.ranks * put_s + self._report_s(real))

    def _report_s(self, blocks: int) -> float:
        shards_of_blocks = self.costs.ranks * blocks
        return self.costs.report.block_s * shards_of_blocks + self.costs.wire_s(96 * shards_of_blocks)

    def _ask_master(self, shard: int, now_s: float, work_s: float) -> float:
        """A request that somebody waits for; returns when the answer is there."""
        self.shard_work_s[shard] += work_s
        half_s = self.costs.round_trip_s / 2
        return self.desks[shard % len(self.desks)].take(now_s + half_s, work_s) + half_s

    def _behind(self, shard: int, now_s: float, work_s: float) -> None:
        """Puts and reports: no request of a user waits for these, so they go behind matches, in slices."""
        self.shard_work_s[shard] += work_s
        self.desks[shard % len(self.desks)].later(now_s, work_s)

    # ------------------------------------------------------------ storms

    def lose_hosts(self, numbers: Sequence[int], now_s: float) -> None:
        """Hosts go down, with the engines on them."""
        for number in numbers:
            self.pool.lose(self.pool.hosts[number], now_s)
            self._caches[number] = PrefixCache(self.shape.cache_blocks)

    def rejoin_hosts(self, numbers: Sequence[int], now_s: float) -> None:
        """They are back, and their nodes have kept their memory."""
        for number in numbers:
            for shard, blocks in self.pool.join(self.pool.hosts[number], now_s).items():
                self._behind(shard, now_s, self._report_s(blocks * self._real_blocks))


def _hashes(blocks: Sequence[int]) -> list[bytes]:
    return [xxhash.xxh3_128_digest(block.to_bytes(8, "little"))[:HASH_BYTES] for block in blocks]
