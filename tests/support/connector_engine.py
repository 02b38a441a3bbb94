"""vLLM's scheduler, block pool and workers in small, so that the two halves can be driven at random.

Every block's right content follows from its hash, its group and its rank. The engine checks the content of every
block that it reads, and of everything in the pool, at every step. Blocks that are given to another request are
overwritten at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from moonpool.connector.counters import Counters
from moonpool.connector.fake_pool import FakePool
from moonpool.connector.groups import Group, GroupKind, GroupPlan
from moonpool.connector.identity import Identity
from moonpool.connector.layout import GroupLayout, TensorView
from moonpool.connector.lookups import PoolLookups
from moonpool.connector.mover import Place
from moonpool.connector.records import RankFacts, WorkerReport
from moonpool.connector.scheduler_half import SchedulerHalf
from moonpool.connector.tracked import Roles, StepView
from moonpool.connector.worker_half import WorkerHalf
from moonpool.schemas.clock import FakeClock
from moonpool.schemas.config import ConnectorSettings
from support.connector_parts import BLOCK_BYTES, BLOCK_TOKENS, NULL, Blocks, ManualRunner, Request, content

STEP_TOKENS = 24

FULL = Group(0, GroupKind.FULL, BLOCK_TOKENS)
WINDOW = Group(1, GroupKind.WINDOW, BLOCK_TOKENS, 9)
ONLY_WINDOW = Group(0, GroupKind.WINDOW, BLOCK_TOKENS, 9)


class FakeEngine:
    """One engine with `ranks` workers over a FakePool."""

    def __init__(
        self,
        pool: FakePool,
        *,
        groups: tuple[Group, ...] = (FULL,),
        ranks: int = 1,
        replicas: int = 1,
        capacity: int = 40,
        settings: ConnectorSettings | None = None,
        roles: Roles | None = None,
        weights: str = "w",
    ) -> None:
        self.pool, self.groups, self.ranks = pool, groups, ranks
        self.clock = FakeClock()
        self.plan = GroupPlan(groups, BLOCK_TOKENS)
        settings = settings or ConnectorSettings()
        self.weights = weights
        self.replicas = replicas
        # Each group has its tensors, as block ids of one pool belong to one group at a time.
        self.memory = [
            [np.zeros((capacity, BLOCK_BYTES), dtype=np.uint8) for _ in groups] for _ in range(ranks)
        ]
        self.blocks = Blocks(capacity, self._scribble)
        self.runners: list[ManualRunner] = []
        counters = Counters()
        self.half = SchedulerHalf(
            self.plan,
            settings,
            roles or Roles(loads=True, saves=True),
            PoolLookups(
                pool,
                counters,
                timeout_s=0.5,
                adapter_digest=lambda adapter: None if adapter == "lost" else str(adapter),
                make_runner=self._runner,
            ),
            self.blocks,
            self.clock,
            ranks=ranks,
            identity=self._identity,
            counters=counters,
        )
        self.workers = [self._worker(rank, settings) for rank in range(ranks)]
        self.requests: dict[str, Request] = {}
        self.finished: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.receiving: dict[str, int] = {}
        self.failed: set[str] = set()
        self.counted: dict[str, float] = {}

    # ------------------------------------------------------------ what a test does

    def add(self, request: Request, adapter: object | None = None) -> Request:
        """A new request."""
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self.half.arrive(request, adapter)
        return request

    def abort(self, request: Request) -> None:
        """A client went away."""
        if request.state not in ("done", "ended"):
            self._finish(request)

    def step(self) -> None:
        """One step of the engine."""
        scheduled: dict[str, int] = {}
        self._admit()
        for request in list(self.running):
            if request in self.running:
                count = self._schedule(request, scheduled)
                if count:
                    scheduled[request.request_id] = count
        tables = {name: self.requests[name].tables for name in scheduled}
        meta = self.half.step(StepView(dict(scheduled), tables.get))
        for worker in self.workers:
            worker.step(_copy(meta))
        self._forward(scheduled)
        report = WorkerReport()
        invalid: set[int] = set()
        finished: list[str] = []
        for worker in self.workers:
            worker.start_loads(lambda: _no_wait)
            worker.start_saves(lambda: _no_wait)
            done = worker.take_loads()
            invalid |= done.bad_block_ids if self.plan.fails_by_block else set()
            self.failed |= set() if self.plan.fails_by_block else done.failed
            for name in done.finished:
                self.receiving[name] -= 1
                if not self.receiving[name]:
                    finished.append(name)
            told = worker.take_report()
            if told is not None:
                report.merge(told)
        self._take_invalid(invalid, finished)
        self._sample(scheduled)
        self.half.report(report, finished)
        for name in finished:
            self._received(name)
        self.clock.advance(0.01)
        self.validate()

    def run_jobs(self) -> None:
        """Everything that threads would do."""
        for runner in self.runners:
            while runner.jobs:
                runner.run()

    def run(self, steps_max: int = 400) -> None:
        """Steps, threads keeping up, until all requests are done and nothing is held."""
        for _ in range(steps_max):
            self.run_jobs()
            if not self.requests and not self.half.pending:
                return
            self.step()
        raise AssertionError(
            f"requests never end: {[(r.request_id, r.state) for r in self.requests.values()]}"
        )

    def ask(self, name: str, tokens: list[int], output_tokens: int = 1) -> Request:
        """One request from begin to end."""
        request = self.add(Request(name, list(tokens), output_tokens))
        self.run()
        return request

    def forget(self) -> None:
        """Empties the local prefix cache."""
        self.blocks.cached.clear()

    def count(self, name: str) -> float:
        """A counter, over both halves."""
        for half in (self.half, *self.workers):
            for key, value in half.counters.take().items():
                self.counted[key] = self.counted.get(key, 0) + value
        return sum(value for key, value in self.counted.items() if key.partition("/")[0] == name)

    def validate(self) -> None:
        """Invariants of engine, halves and pool."""
        self.half.validate()
        held = sum(self.blocks.references) - 1
        tables = sum(1 for r in self.requests.values() for t in r.tables for b in t if b != NULL)
        assert held >= tables
        specs = self.pool.specs
        for (keyspace, shard, block), data in self.pool.blocks.items():
            group = int(dict(specs[keyspace].identity)["group"][0])
            assert data == content(group, shard, block).tobytes(), "a wrong block in the pool"

    # ------------------------------------------------------------ parts

    def _runner(self, name: str, handle: Callable[[Any], None], **options: Any) -> ManualRunner:
        runner = ManualRunner(name, handle, **options)
        self.runners.append(runner)
        return runner

    def _identity(self, facts: Any) -> Identity:
        ranks = tuple(facts[rank] for rank in sorted(facts))
        return Identity("fake", "default", 32, self.plan, {}, ranks)

    def _worker(self, rank: int, settings: ConnectorSettings) -> WorkerHalf:
        layouts = []
        for array in self.memory[rank]:
            address, shape = array.ctypes.data, array.shape
            view = TensorView("layer", address, shape, (BLOCK_BYTES, 1), 1, "uint8")
            layouts.append(GroupLayout([view], shape[0]))
        shard = rank // self.replicas

        def facts(generation: int) -> RankFacts:
            sizes = (BLOCK_BYTES,) * len(self.groups)
            return RankFacts(generation, shard, sizes, ("layout",) * len(self.groups), self.weights)

        place = Place(rank, shard, rank % self.replicas, self.replicas)
        return WorkerHalf(self.plan, settings, self.pool, place, layouts, facts, make_runner=self._runner)

    def _scribble(self, block: int) -> None:
        for rank in self.memory:
            for array in rank:
                array[block] = 0xEE

    def _admit(self) -> None:
        for request in list(self.waiting):
            if request.state == "loading":
                continue
            if request.state == "waiting":
                local = self._local_hit(request)
                beyond = self.half.offer(request, local)
                if beyond is None:
                    self._free(request)
                    continue
                if not self._allocate(request, local, beyond):
                    self._free(request)
                    break
                self.half.taken(request, request.tables, beyond)
                request.num_computed_tokens = local + beyond
                request.from_pool += beyond
                if beyond:
                    request.state = "loading"
                    self.receiving[request.request_id] = self.ranks
                    continue
            request.state = "running"
            self.waiting.remove(request)
            self.running.append(request)

    def _local_hit(self, request: Request) -> int:
        """Takes locally cached blocks into the request's tables. One group only: hybrid hits are vLLM's matter."""
        request.tables = [[] for _ in self.groups]
        if len(self.groups) > 1:
            return 0
        for block in request.block_hashes[: (request.num_tokens - 1) // BLOCK_TOKENS]:
            found = self.blocks.cached.get((0, block))
            if found is None:
                break
            self.blocks.hold([found])
            request.tables[0].append(found)
        return len(request.tables[0]) * BLOCK_TOKENS

    def _allocate(self, request: Request, local: int, beyond: int) -> bool:
        total = local + beyond
        for group, table in zip(self.groups, request.tables, strict=True):
            while len(table) < -(-total // BLOCK_TOKENS):
                if len(table) < group.first_needed(total):
                    table.append(NULL)
                    continue
                block = self.blocks.take()
                if block is None:
                    return False
                table.append(block)
        return True

    def _schedule(self, request: Request, scheduled: dict[str, int]) -> int:
        """Tokens of this request in this step, with blocks for them; preempts others where there are none."""
        if request.num_computed_tokens >= request.num_tokens:
            request.num_computed_tokens = request.num_tokens - 1
        count = min(STEP_TOKENS, request.num_tokens - request.num_computed_tokens)
        end = request.num_computed_tokens + count
        for group, table in zip(self.groups, request.tables, strict=True):
            for at in range(min(group.first_needed(request.num_computed_tokens), len(table))):
                self.blocks.release([table[at]])
                table[at] = NULL
            while len(table) < -(-end // BLOCK_TOKENS):
                block = self.blocks.take()
                while block is None:
                    victim = self.running[-1]
                    scheduled.pop(victim.request_id, None)
                    self._preempt(victim)
                    if victim is request:
                        return 0
                    block = self.blocks.take()
                table.append(block)
        return count

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._free(request)
        request.num_computed_tokens = 0
        request.state = "waiting"
        self.waiting.insert(0, request)

    def _free(self, request: Request) -> None:
        for table in request.tables:
            self.blocks.release(table[::-1])
        request.tables = [[] for _ in self.groups]

    def _forward(self, scheduled: dict[str, int]) -> None:
        """Reads all that was computed before, and writes what is new."""
        for name, count in scheduled.items():
            request = self.requests[name]
            self._check(request, request.num_computed_tokens)
            end = request.num_computed_tokens + count
            for number, table in enumerate(request.tables):
                for at in range(request.num_computed_tokens // BLOCK_TOKENS, end // BLOCK_TOKENS):
                    for rank, arrays in enumerate(self.memory):
                        block = request.block_hashes[at]
                        arrays[number][table[at]] = content(number, rank // self.replicas, block)
                    if len(self.groups) == 1:
                        self.blocks.cached.setdefault((0, request.block_hashes[at]), table[at])

    def _check(self, request: Request, tokens: int) -> None:
        """Every block that the next token attends to holds what it should."""
        for number, (group, table) in enumerate(zip(self.groups, request.tables, strict=True)):
            for at in range(group.first_needed(tokens), tokens // BLOCK_TOKENS):
                for rank, arrays in enumerate(self.memory):
                    wanted = content(number, rank // self.replicas, request.block_hashes[at])
                    assert (arrays[number][table[at]] == wanted).all(), (
                        f"{request.request_id} reads a wrong block {at} of group {number}, rank {rank}"
                    )

    def _sample(self, scheduled: dict[str, int]) -> None:
        for name, count in scheduled.items():
            request = self.requests.get(name)
            if request is None or request not in self.running:
                continue
            request.num_computed_tokens += count
            if request.num_computed_tokens == request.num_tokens:
                if not request.output_tokens:
                    self._finish(request)
                    continue
                request.output_tokens -= 1
                request.tokens.append(len(request.tokens) % 7)
                request.rehash()

    def _finish(self, request: Request) -> None:
        self.half.finish(request, request.tables)
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        if request.state == "loading" and self.receiving.get(request.request_id):
            request.state = "ended"  # its blocks stay until the load is reported
            return
        self._drop(request)

    def _drop(self, request: Request) -> None:
        self._free(request)
        request.state = "done"
        del self.requests[request.request_id]
        self.finished[request.request_id] = request

    def _take_invalid(self, invalid: set[int], finished: list[str]) -> None:
        for request in self.waiting:
            if request.state != "loading":
                continue
            if request.request_id in self.failed and request.request_id in finished:
                request.num_computed_tokens = 0
                request.errors += 1
            for at, block in enumerate(request.tables[0]):
                if block in invalid and at * BLOCK_TOKENS < request.num_computed_tokens:
                    request.num_computed_tokens = at * BLOCK_TOKENS
                    request.errors += 1
                    break

    def _received(self, name: str) -> None:
        assert name in self.requests, "a load of a request that the scheduler doesn't hold"
        del self.receiving[name]
        self.failed.discard(name)
        request = self.requests[name]
        if request.state == "ended":
            self._drop(request)
        elif request.num_computed_tokens:
            request.state = "loaded"
        else:
            self._free(request)
            request.state = "waiting"


def _copy(meta: Any) -> Any:
    """As a process boundary would."""
    import pickle

    return pickle.loads(pickle.dumps(meta))


def _no_wait() -> None:
    return None
