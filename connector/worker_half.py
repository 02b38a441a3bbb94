"""The half beside a vLLM worker: moves blocks between the engine's memory and the pool, in threads.

step() takes the scheduler's orders in; start_loads() and start_saves() hand them to the threads with a fence;
take_loads() and take_report() tell the outcome. A load is told only when nothing can write its blocks any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from moonpool.connector.counters import Counters
from moonpool.connector.groups import GroupPlan
from moonpool.connector.layout import GroupLayout
from moonpool.connector.pool_client import BlockGet, BlockPut, PoolClient
from moonpool.connector.records import (
    JobOutcome,
    RankFacts,
    SaveJob,
    Span,
    StepMeta,
    Transfer,
    WorkerReport,
)
from moonpool.connector.workers import RunnerMaker, Workers
from moonpool.schemas.config import ConnectorSettings
from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8, split_hashes

ORPHAN_RETRIES = 2
ORPHAN_PAUSE_S = 0.02

log = logging.getLogger(__name__)

Fence = Callable[[], None]
"""Returns once everything that the engine had launched when the fence was made is done."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which worker this is. `shard`: its rank in the keyspaces. `replica` of `replicas`: workers with equal KV
    share the writing. `engine_rank`: among the engine's workers."""

    engine_rank: int
    shard: int
    replica: int = 0
    replicas: int = 1


@dataclass(slots=True)
class LoadsDone:
    """Loads that ended since the last look."""

    finished: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    bad_block_ids: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _LoadJob:
    transfer: Transfer
    chains: list[Sequence[bytes]]
    fence: Fence


@dataclass(frozen=True, slots=True)
class _SaveJob:
    job: SaveJob
    chains: list[list[Sequence[bytes]]]
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
    ) -> None:
        """`layouts`: one a group of the plan. `facts`: this worker's, for a generation. `begin`: first thing in
        each thread."""
        self.counters = Counters()
        self._plan = plan
        self._settings = settings
        self._client = client
        self._place = place
        self._layouts = layouts
        self._facts = facts
        self._chains: dict[str, list[bytes]] = {}
        self._specs: dict[bytes, KeyspaceSpec] = {}
        self._registered: set[bytes] = set()
        self._registering = threading.Lock()
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
            begin=begin,
        )

    # ------------------------------------------------------------ the engine's thread

    def step(self, meta: StepMeta) -> None:
        """Takes in the orders of one step."""
        self._meta = meta
        for spec in meta.specs:
            self._specs[spec.digest()] = spec
        for part in meta.chains:
            chain = self._chains.setdefault(part.request_id, [])
            del chain[part.start :]
            chain += split_hashes(part.hashes, part.hash_bytes)
        if meta.want_facts:
            self._told.facts[self._place.engine_rank] = self._facts(meta.want_facts)

    def start_loads(self, fence: Callable[[], Fence]) -> None:
        """Hands this step's loads to the threads."""
        meta = self._meta
        if meta is None or not meta.loads:
            return
        barrier = fence()
        for transfer in meta.loads:
            job = _LoadJob(transfer, self._chains_of(transfer), barrier)
            if not self._loads.submit(job):
                self._loads_done.append((transfer, _all_blocks(transfer)))
        meta.loads = []

    def start_saves(self, fence: Callable[[], Fence]) -> None:
        """Hands this step's saves to the threads, and forgets finished requests."""
        meta, self._meta = self._meta, None
        if meta is None:
            return
        if meta.job is not None:
            job = _SaveJob(meta.job, [self._chains_of(t) for t in meta.job.transfers], fence())
            if not self._saves.submit(job):
                blocks = sum(transfer.block_count for transfer in meta.job.transfers)
                self.counters.add("save_dropped_blocks", blocks)
                self._saves_done.append((meta.job.job_id, JobOutcome(1, bytes(blocks), {"DROPPED": blocks})))
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

    def close(self) -> None:
        """Drops what hasn't begun and ends the threads."""
        self._loads.close()
        self._saves.close()
        self._client.close()

    def _chains_of(self, transfer: Transfer) -> list[Sequence[bytes]]:
        """For each span the hashes its call needs: up to its end, or of a flat one its own."""
        base = self._chains.get(transfer.request_id, [])
        chains: list[Sequence[bytes]] = []
        for span in transfer.spans:
            group = self._plan.groups[span.group]
            end = span.first + len(span.block_ids)
            first = 0 if group.chained else span.first
            chains.append(self._plan.chain(group, base)[first:end])
        return chains

    # ------------------------------------------------------------ the threads

    def _do_load(self, job: _LoadJob) -> None:
        bad: list[tuple[int, int]] = _all_blocks(job.transfer)
        began_s = time.monotonic()
        try:
            job.fence()
            bad = self._load(job, began_s + self._settings.load_timeout_s)
        except MoonpoolError as error:
            log.debug("a load of %s failed: %s", job.transfer.request_id, error)
        finally:
            self._loads_done.append((job.transfer, bad))
        good = job.transfer.block_count - len(bad)
        self.counters.add("load_blocks", good)
        self.counters.add("load_seconds", time.monotonic() - began_s)

    def _load(self, job: _LoadJob, deadline_s: float) -> list[tuple[int, int]]:
        """(group, position) of the blocks that were not loaded."""
        bad: list[tuple[int, int]] = []
        for span, chain in zip(job.transfer.spans, job.chains, strict=True):
            group = self._plan.groups[span.group]
            if bad and not self._plan.fails_by_block:
                bad += _blocks(span)  # the whole request is computed anyway
                continue
            self._register(span.keyspace, deadline_s)
            get = BlockGet(
                span.keyspace,
                self._place.shard,
                chain,
                span.first if group.chained else 0,
                self._layouts[span.group].fragments(span.block_ids),
            )
            statuses = self._client.get_blocks(get, timeout_s=_left_s(deadline_s))
            missing = np.flatnonzero(statuses != Status.OK)
            bad += [(span.group, span.first + int(i)) for i in missing]
            good = len(statuses) - len(missing)
            self.counters.add("load_bytes", good * self._layouts[span.group].block_bytes)
        return bad

    def _do_save(self, job: _SaveJob) -> None:
        blocks = sum(transfer.block_count for transfer in job.job.transfers)
        outcome = JobOutcome(1, bytes(blocks), {"FAILED": blocks})
        began_s = time.monotonic()
        try:
            job.fence()
            outcome = self._save(job, began_s + self._settings.save_timeout_s)
            self.counters.add("save_failed_blocks", outcome.in_pool.count(0))
        except MoonpoolError as error:
            log.debug("save job %d failed: %s", job.job.job_id, error)
        finally:
            self._saves_done.append((job.job.job_id, outcome))
        self.counters.add("save_jobs")
        self.counters.add("save_seconds", time.monotonic() - began_s)

    def _save(self, job: _SaveJob, deadline_s: float) -> JobOutcome:
        spans = [span for transfer in job.job.transfers for span in transfer.spans]
        chains = [chain for chains in job.chains for chain in chains]
        # Blocks that another replica writes count as done here: its own report decides.
        statuses = [np.full(len(span.block_ids), Status.EXISTS, dtype=np.uint8) for span in spans]
        shares = [self._share(len(s.block_ids), job.job.job_id + n) for n, s in enumerate(spans)]
        todo = [number for number, part in enumerate(shares) if part.stop > part.start]
        for attempt in range(1 + ORPHAN_RETRIES):
            puts = [self._put(spans[n], chains[n], shares[n], deadline_s) for n in todo]
            found = self._client.put_blocks(puts, timeout_s=_left_s(deadline_s)) if puts else []
            for number, status in zip(todo, found, strict=True):
                statuses[number][shares[number]] = status
                self._count_saved(status, self._layouts[spans[number].group].block_bytes)
            todo = [n for n in todo if statuses[n][shares[n].start] == Status.NO_PARENT]
            if not todo or attempt == ORPHAN_RETRIES or time.monotonic() + ORPHAN_PAUSE_S > deadline_s:
                break
            # Their parents are another replica's or thread's part, which may be on its way; if it isn't, the whole
            # span is put from here.
            time.sleep(ORPHAN_PAUSE_S)
            for number in todo:
                shares[number] = slice(0, len(spans[number].block_ids))
        return _outcome_of(np.concatenate(statuses) if statuses else np.zeros(0, dtype=np.uint8))

    def _share(self, count: int, turn: int) -> slice:
        """This replica's part of `count` blocks; `turn` spreads the single ones."""
        replicas = self._place.replicas
        mine = (self._place.replica + turn) % replicas
        return slice(count * mine // replicas, count * (mine + 1) // replicas)

    def _put(self, span: Span, chain: Sequence[bytes], part: slice, deadline_s: float) -> BlockPut:
        self._register(span.keyspace, deadline_s)
        source = self._layouts[span.group].fragments(span.block_ids[part])
        if self._plan.groups[span.group].chained:
            return BlockPut(span.keyspace, self._place.shard, chain, span.first + part.start, source)
        return BlockPut(span.keyspace, self._place.shard, chain[part], 0, source)

    def _count_saved(self, found: U8, block_bytes: int) -> None:
        written = int((found == Status.OK).sum())
        self.counters.add("save_blocks", written)
        self.counters.add("save_bytes", written * block_bytes)
        self.counters.add("save_known_blocks", int((found == Status.EXISTS).sum()))

    def _register(self, keyspace: bytes, deadline_s: float) -> None:
        with self._registering:
            if keyspace not in self._registered:
                self._client.register_keyspace(self._specs[keyspace], timeout_s=_left_s(deadline_s))
                self._registered.add(keyspace)


def _blocks(span: Span) -> list[tuple[int, int]]:
    return [(span.group, span.first + i) for i in range(len(span.block_ids))]


def _all_blocks(transfer: Transfer) -> list[tuple[int, int]]:
    return [block for span in transfer.spans for block in _blocks(span)]


def _outcome_of(statuses: U8) -> JobOutcome:
    # BUSY: somebody else is writing it this moment.
    in_pool = np.isin(statuses, (Status.OK, Status.EXISTS, Status.BUSY))
    reasons = {Status(value).name: int((statuses == value).sum()) for value in np.unique(statuses[~in_pool])}
    return JobOutcome(1, in_pool.astype(np.uint8).tobytes(), reasons)


def _left_s(deadline_s: float) -> float:
    return max(0.001, deadline_s - time.monotonic())
