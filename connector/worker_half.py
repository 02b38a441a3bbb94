"""The half beside a vLLM worker: moves blocks between the engine's memory and the pool, in threads.

step() takes the scheduler's orders in; start_loads() and start_saves() hand them to the threads with a fence;
take_loads() and take_report() tell the outcome. A load is told only when nothing can write its blocks any more.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moonpool.connector.client_stats import ClientStats
from moonpool.connector.counters import Counters, Stats
from moonpool.connector.groups import GroupPlan
from moonpool.connector.layout import GroupLayout
from moonpool.connector.mover import BlockMover, Move, Place, blocks_of
from moonpool.connector.pool_client import PoolClient
from moonpool.connector.records import JobOutcome, RankFacts, StepMeta, Transfer, WorkerReport
from moonpool.connector.workers import RunnerMaker, Workers
from moonpool.schemas.config import ConnectorSettings
from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.packed import split_hashes
from moonpool.store_client.tracing import Spans, no_spans

log = logging.getLogger(__name__)

NAMED_MAX = 16
"""Requests that the span of a save names."""

Fence = Callable[[], None]
"""Returns once everything that the engine had launched when the fence was made is done."""


@dataclass(slots=True)
class LoadsDone:
    """Loads that ended since the last look."""

    finished: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    bad_block_ids: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _LoadJob:
    move: Move
    fence: Fence
    deadline_s: float
    """From when it was ordered: a load that finds no thread in time is computed instead, too."""


@dataclass(frozen=True, slots=True)
class _SaveJob:
    job_id: int
    moves: list[Move]
    fence: Fence


class WorkerHalf:
    """All methods run in the worker's main thread, but for the `_do_` ones, which the threads run."""

    def __init__(
        self,
        plan: GroupPlan,
        settings: ConnectorSettings,
        client: PoolClient,
        place: Place,
        layouts: Sequence[GroupLayout],
        facts: Callable[[int], RankFacts],
        begin: Callable[[], None] | None = None,
        make_runner: RunnerMaker = Workers,
        spans: Spans = no_spans,
    ) -> None:
        """`layouts`: one a group of the plan. `facts`: this worker's, for a generation. `begin`: first thing in
        each thread."""
        self.counters = Counters()
        self._client_stats = ClientStats(client, "worker")
        self._plan = plan
        self._settings = settings
        self._client = client
        self._begin = begin
        self._spans = spans
        self._place = place
        self._facts = facts
        self._asked_facts = 0
        self._own_facts: RankFacts | None = None
        self._mover = BlockMover(plan, client, place, layouts, self.counters)
        self._chains: dict[str, list[bytes]] = {}
        self._meta: StepMeta | None = None
        self._told = WorkerReport()
        self._loads_done: deque[tuple[Transfer, list[tuple[int, int]]]] = deque()
        self._saves_done: deque[tuple[int, JobOutcome]] = deque()
        self._loads = make_runner(
            "load",
            self._do_load,
            threads=settings.load_threads,
            queue_max=settings.load_queue_max,
            begin=begin,
        )
        self._saves = make_runner(
            "save",
            self._do_save,
            threads=settings.save_threads,
            queue_max=settings.save_queue_max,
            begin=self._begin_saves,
        )

    # ------------------------------------------------------------ the engine's thread

    def step(self, meta: StepMeta) -> None:
        """Takes in the orders of one step."""
        self._meta = meta
        for spec in meta.specs:
            self._mover.specs[spec.digest()] = spec
        for part in meta.chains:
            chain = self._chains.setdefault(part.request_id, [])
            del chain[part.start :]
            chain += split_hashes(part.hashes, part.hash_bytes)
        if meta.want_facts:
            self._tell_facts(meta.want_facts)

    def _tell_facts(self, generation: int) -> None:
        """Facts are taken from any model that vLLM runs: what goes wrong there must not end the engine (I6)."""
        if self._asked_facts != generation:
            self._asked_facts, self._own_facts = generation, None
            try:
                self._own_facts = self._facts(generation)
            except Exception:
                log.exception("the pool is not used: this worker can't say what its blocks depend on")
        if self._own_facts is not None:
            self._told.facts[self._place.engine_rank] = self._own_facts

    def start_loads(self, fence: Callable[[], Fence]) -> None:
        """Hands this step's loads to the threads."""
        meta = self._meta
        if meta is None or not meta.loads:
            return
        barrier = fence()
        deadline_s = time.monotonic() + self._settings.load_timeout_s
        for transfer in meta.loads:
            if not self._loads.submit(_LoadJob(self._move(transfer), barrier, deadline_s)):
                self._loads_done.append((transfer, _all_blocks(transfer)))
        meta.loads = []

    def start_saves(self, fence: Callable[[], Fence]) -> None:
        """Hands this step's saves to the threads, and forgets finished requests."""
        meta, self._meta = self._meta, None
        if meta is None:
            return
        if meta.job is not None:
            moves = [self._move(transfer) for transfer in meta.job.transfers]
            if not self._saves.submit(_SaveJob(meta.job.job_id, moves, fence())):
                outcome = _failed(moves, "DROPPED")
                self.counters.add("save_dropped_blocks", len(outcome.in_pool), "queue")
                self._saves_done.append((meta.job.job_id, outcome))
        for request_id in meta.forget:
            self._chains.pop(request_id, None)

    def take_loads(self) -> LoadsDone:
        """Loads that ended since the last call. A failed one is in `finished` too."""
        done = LoadsDone()
        while self._loads_done:
            transfer, bad = self._loads_done.popleft()
            done.finished.add(transfer.request_id)
            if not bad:
                continue
            done.failed.add(transfer.request_id)
            self._told.bad_loads.setdefault(transfer.request_id, []).extend(bad)
            ids = {
                (span.group, span.first + i): block
                for span in transfer.spans
                for i, block in enumerate(span.block_ids)
            }
            done.bad_block_ids.update(ids[block] for block in bad)
        return done

    def take_report(self) -> WorkerReport | None:
        """What the scheduler half must hear; None where there is nothing."""
        while self._saves_done:
            job_id, outcome = self._saves_done.popleft()
            self._told.jobs[job_id] = outcome
        report, self._told = self._told, WorkerReport()
        return None if report.empty else report

    def take_stats(self) -> Stats:
        """What was counted since the last call."""
        return self.counters.take() | self._client_stats.take()

    def close(self) -> None:
        """Drops what hasn't begun and ends the threads. The client goes first: calls under way then end soon."""
        self._client.close()
        self._loads.close()
        self._saves.close()

    def _move(self, transfer: Transfer) -> Move:
        base = self._chains.get(transfer.request_id, [])
        chains: list[Sequence[bytes]] = []
        for span in transfer.spans:
            group = self._plan.groups[span.group]
            end = span.first + len(span.block_ids)
            first = 0 if group.chained else span.first
            chains.append(self._plan.chain(group, base)[first:end])
        return Move(transfer, chains)

    # ------------------------------------------------------------ the threads

    def _begin_saves(self) -> None:
        """Saves can wait while segments are mapped and pinned; a first load would be computed instead."""
        if self._begin is not None:
            self._begin()
        try:
            self._client.prepare()
        except MoonpoolError as error:
            log.info("the pool is used once it is there: %s", error)

    def _do_load(self, job: _LoadJob) -> None:
        transfer = job.move.transfer
        bad = _all_blocks(transfer)
        began_s = time.monotonic()
        try:
            job.fence()
            if time.monotonic() < job.deadline_s:
                with self._spans("connector.load", b"", transfer.block_count, transfer.request_id):
                    bad = self._mover.load(job.move, job.deadline_s)
        except MoonpoolError as error:
            log.debug("a load of %s failed: %s", transfer.request_id, error)
        finally:
            self._loads_done.append((transfer, bad))
        self.counters.add("load_blocks", transfer.block_count - len(bad))
        self.counters.add("load_seconds", time.monotonic() - began_s)

    def _do_save(self, job: _SaveJob) -> None:
        outcome = _failed(job.moves, "FAILED")
        began_s = time.monotonic()
        try:
            job.fence()
            with self._spans("connector.save", b"", *_what(job.moves)):
                outcome = self._mover.save(job.moves, job.job_id, began_s + self._settings.save_timeout_s)
        except MoonpoolError as error:
            log.debug("save job %d failed: %s", job.job_id, error)
        finally:
            self._saves_done.append((job.job_id, outcome))
        self.counters.add("save_jobs")
        for reason, blocks in outcome.reasons.items():
            self.counters.add("save_failed_blocks", blocks, reason.lower())
        self.counters.add("save_seconds", time.monotonic() - began_s)


def _failed(moves: Sequence[Move], reason: str) -> JobOutcome:
    blocks = sum(move.transfer.block_count for move in moves)
    return JobOutcome(1, bytes(blocks), {reason: blocks})


def _all_blocks(transfer: Transfer) -> list[tuple[int, int]]:
    return [block for span in transfer.spans for block in blocks_of(span)]


def _what(moves: Sequence[Move]) -> tuple[int, str]:
    """(blocks, requests) of a save, for its span."""
    requests = dict.fromkeys(move.transfer.request_id for move in moves)
    return sum(move.transfer.block_count for move in moves), ",".join(list(requests)[:NAMED_MAX])
