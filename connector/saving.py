"""Which blocks to save in which step, and holding them until every rank has copied them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from moonpool.connector.counters import Counters
from moonpool.connector.expiring import ExpiringSet
from moonpool.connector.gate import SaveGate
from moonpool.connector.groups import Group, GroupKind, GroupPlan
from moonpool.connector.records import JobOutcome, SaveJob, Span, Transfer
from moonpool.connector.tracked import BlockTable, Tracked
from moonpool.schemas.config import ConnectorSettings
from moonpool.schemas.runs import run_start

SEEN_S = 30.0
"""So long is a block that was seen in the pool not offered again. It may be evicted meanwhile: then it is offered after that."""
SEEN_MAX = 1 << 20
RETRIES_MAX = 3
HELD_SHARE_MAX = 0.25
"""Share of the engine's blocks that saves may hold: a slow pool must not starve the engine of memory."""


class BlockHolder(Protocol):
    """The engine's block pool: a held block isn't given to another request."""

    @property
    def null_block(self) -> int:
        """The id that stands for no block."""
        ...

    @property
    def capacity(self) -> int:
        """Blocks in all."""
        ...

    def holds_state(self, block_id: int, tokens: int) -> bool:
        """Whether a block of a state group holds the state after so many tokens of its request, once this step is
        done. It may also be a running state, which is of no use to anyone else."""
        ...

    def hold(self, block_ids: Sequence[int]) -> None:
        """Takes a reference on each."""
        ...

    def release(self, block_ids: Sequence[int]) -> None:
        """Gives them back; the first one is reused first."""
        ...


@dataclass(slots=True)
class _Job:
    transfers: list[Transfer]
    hashes: list[list[Sequence[bytes]]]
    held: list[int]
    probe: bool
    outcome: JobOutcome | None = None


class SavePlanner:
    """Cursors of requests, jobs under way, and what is known to be in the pool."""

    def __init__(
        self,
        plan: GroupPlan,
        settings: ConnectorSettings,
        holder: BlockHolder,
        counters: Counters,
        ranks: int,
    ) -> None:
        """`ranks`: how many workers report each job."""
        self._plan = plan
        self._settings = settings
        self._holder = holder
        self._counters = counters
        self._ranks = ranks
        self._jobs: dict[int, _Job] = {}
        self._next_job = 1
        self._held_blocks = 0
        self._drafts: list[tuple[Transfer, list[Sequence[bytes]]]] = []
        self._draft_blocks = 0
        self.gate = SaveGate()
        self.seen = ExpiringSet(SEEN_S, SEEN_MAX)

    @property
    def pending(self) -> bool:
        """Whether some job, sent or not, isn't done on all ranks."""
        return bool(self._jobs or self._drafts)

    def note_ready(self, tracked: Tracked, ready: Sequence[int | Sequence[bool]], now_s: float) -> None:
        """The pool says which blocks are there: those needn't be offered, whatever was seen of the others."""
        for group, digest, found in zip(self._plan.groups, tracked.digests, ready, strict=True):
            chain = self._plan.chain(group, tracked.request.block_hashes)
            bits = [at < found for at in range(len(chain))] if isinstance(found, int) else found
            self.seen.discard(digest + block for block, bit in zip(chain, bits, strict=False) if not bit)
            self.seen.add((digest + block for block, bit in zip(chain, bits, strict=False) if bit), now_s)

    def draft(
        self, tracked: Tracked, table: BlockTable, computed_tokens: int, now_s: float
    ) -> Transfer | None:
        """Drafts the full blocks of a request that no job has had, of those that are computed (or will be when
        this step is done). Their blocks are held from now on. None where there are none, or no room for any."""
        if tracked.keyspaces is None or tracked.outdated or tracked.save_retries > RETRIES_MAX:
            return None
        spans: list[Span] = []
        hashes: list[Sequence[bytes]] = []
        for number, group in enumerate(self._plan.groups):
            chain_length = len(tracked.request.block_hashes) * self._plan.hash_tokens // group.block_tokens
            ids = table[group.index]
            end = min(computed_tokens // group.block_tokens, chain_length, len(ids))
            if tracked.saved[number] >= end:
                continue
            chain = self._plan.chain(group, tracked.request.block_hashes)
            for first, count in self._unsaved(tracked, number, group, chain, ids, end, now_s):
                spans.append(Span(number, tracked.digests[number], first, ids[first : first + count]))
                hashes.append(chain[first : first + count])
        if not spans:
            return None
        transfer = Transfer(tracked.request_id, spans, tracked.session_id)
        held = [block for span in spans for block in span.block_ids]
        self._holder.hold(held)
        self._held_blocks += len(held)
        self._draft_blocks += len(held)
        self._drafts.append((transfer, hashes))
        return transfer

    def send(self, now_s: float) -> SaveJob | None:
        """The job of all drafts, if there are any."""
        if not self._drafts:
            return None
        transfers = [transfer for transfer, _ in self._drafts]
        hashes = [chains for _, chains in self._drafts]
        held = [block for transfer in transfers for span in transfer.spans for block in span.block_ids]
        job_id = self._next_job
        self._next_job += 1
        self._jobs[job_id] = _Job(transfers, hashes, held, probe=not self.gate.open)
        self._drafts, self._draft_blocks = [], 0
        self.gate.sent(now_s)
        return SaveJob(job_id, transfers)

    def report(self, job_id: int, outcome: JobOutcome, tracked: dict[str, Tracked], now_s: float) -> None:
        """Takes in what some ranks say of a job; after the last one its blocks are free."""
        job = self._jobs.get(job_id)
        if job is None:
            return
        if job.outcome is None:
            job.outcome = outcome
        else:
            job.outcome.merge(outcome)
        if job.outcome.ranks < self._ranks:
            return
        del self._jobs[job_id]
        self._held_blocks -= len(job.held)
        self._holder.release(job.held[::-1])  # tails are reused first
        self._judge(job, job.outcome, now_s)
        self._settle(job, job.outcome, tracked, now_s)

    def budget(self, now_s: float) -> int:
        """Blocks that may still be drafted for this step's job."""
        if len(self._jobs) >= self._settings.save_queue_max:
            return 0
        room = int(self._holder.capacity * HELD_SHARE_MAX) - self._held_blocks
        return max(0, min(self.gate.budget(now_s) - self._draft_blocks, room))

    def unsaved_blocks(self, tracked: Tracked, computed_tokens: int) -> int:
        """Full computed blocks that no job has had."""
        return sum(
            max(0, computed_tokens // group.block_tokens - tracked.saved[number])
            for number, group in enumerate(self._plan.groups)
        )

    def validate(self) -> None:
        """Every held block belongs to a job or a draft."""
        drafts = sum(transfer.block_count for transfer, _ in self._drafts)
        assert drafts == self._draft_blocks
        assert self._held_blocks == drafts + sum(len(job.held) for job in self._jobs.values())
        self.gate.validate()

    def _unsaved(
        self,
        tracked: Tracked,
        number: int,
        group: Group,
        chain: Sequence[bytes],
        ids: list[int],
        end: int,
        now_s: float,
    ) -> list[tuple[int, int]]:
        """(first, count) of the stretches to save; moves the request's cursor over them."""
        digest, first = tracked.digests[number], tracked.saved[number]
        null = self._holder.null_block
        budget = self.budget(now_s)
        stretches: list[tuple[int, int]] = []
        start = -1
        position = first
        while position < end:
            absent = ids[position] == null or not self._complete(group, ids[position], position)
            if absent and group.chained:
                break  # nothing after a gap could be found again
            if absent or self.seen.holds(digest + chain[position], now_s):
                if start >= 0 and not group.chained:
                    stretches.append((start, position - start))
                    start = -1
            elif budget <= 0:
                break
            else:
                budget -= 1
                start = position if start < 0 else start
            position += 1
        if start >= 0:
            stretches.append((start, position - start))
        tracked.saved[number] = position
        return stretches

    def _complete(self, group: Group, block_id: int, position: int) -> bool:
        """Whether a full block's bytes are those of its hash."""
        tokens = (position + 1) * group.block_tokens
        return group.kind is not GroupKind.STATE or self._holder.holds_state(block_id, tokens)

    def _judge(self, job: _Job, outcome: JobOutcome, now_s: float) -> None:
        """Opens or closes the gate."""
        reasons = outcome.reasons
        if "NO_SPACE" in reasons or (not any(outcome.in_pool) and "FAILED" in reasons):
            self.gate.failed(now_s, probe=job.probe)
        elif any(outcome.in_pool):
            self.gate.succeeded()

    def _settle(self, job: _Job, outcome: JobOutcome, tracked: dict[str, Tracked], now_s: float) -> None:
        """Remembers what is in the pool; what isn't is offered again if its request still lives."""
        at = 0
        orphans = "NO_PARENT" in outcome.reasons
        for transfer, chains in zip(job.transfers, job.hashes, strict=True):
            owner = tracked.get(transfer.request_id)
            retry = False
            for span, chain in zip(transfer.spans, chains, strict=True):
                bits = outcome.in_pool[at : at + len(chain)]
                at += len(chain)
                self.seen.add(
                    (span.keyspace + block for block, bit in zip(chain, bits, strict=True) if bit), now_s
                )
                if owner is not None and not all(bits):
                    self._rewind(owner, span, span.first + bits.index(0), orphans)
                    retry = True
            if owner is not None and retry:
                owner.save_retries += 1

    def _rewind(self, owner: Tracked, span: Span, first_bad: int, orphans: bool) -> None:
        """Offers blocks again from the first bad one on; where a parent is gone, from its run's first block on."""
        group = self._plan.groups[span.group]
        if orphans and group.chained:
            chain = self._plan.chain(group, owner.request.block_hashes)
            start = run_start(first_bad)
            self.seen.discard(span.keyspace + block for block in chain[start:first_bad])
            first_bad = start
        owner.saved[span.group] = min(owner.saved[span.group], first_bad)
