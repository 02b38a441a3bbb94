"""The half beside vLLM's scheduler: what to load, what to save, whose leases to renew. Knows no vLLM, never waits.

request arrives -> Matcher asks the pool in a thread -> offer() -> taken() makes a load of it
each step       -> SavePlanner drafts the newly full blocks -> step() packs loads and saves for the workers
workers' report -> blocks are released, failed blocks are shunned
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from moonpool.connector.counters import Counters, Stats
from moonpool.connector.groups import GroupPlan
from moonpool.connector.identity import BASE_MODEL, Identity
from moonpool.connector.lookups import Lease, Lookups
from moonpool.connector.matching import Matcher
from moonpool.connector.records import ChainPart, RankFacts, Span, StepMeta, Transfer, WorkerReport
from moonpool.connector.saving import BlockHolder, SavePlanner
from moonpool.connector.tracked import BlockTable, EngineRequest, Roles, StepView, Tracked, session_of
from moonpool.schemas.clock import Clock
from moonpool.schemas.config import ConnectorSettings
from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.packed import join_hashes

RENEW_EVERY_S = 3.0

log = logging.getLogger(__name__)

IdentityMaker = Callable[[Mapping[int, RankFacts]], Identity]
"""From every worker's facts, once all of them are known."""


@dataclass(slots=True)
class _Load:
    transfer: Transfer
    tracked: Tracked


class SchedulerHalf:
    """All methods run in the scheduler's thread."""

    def __init__(
        self,
        plan: GroupPlan,
        settings: ConnectorSettings,
        roles: Roles,
        lookups: Lookups,
        holder: BlockHolder,
        clock: Clock,
        *,
        ranks: int,
        identity: IdentityMaker,
        counters: Counters,
        client_stats: Callable[[], Stats] = dict,
    ) -> None:
        """`ranks`: workers of this engine (one data-parallel replica). `client_stats`: of the client behind `lookups`."""
        self.counters = counters
        self._client_stats = client_stats
        self._plan = plan
        self._settings = settings
        self._roles = roles
        self._lookups = lookups
        self._clock = clock
        self._ranks = ranks
        self._make_identity = identity
        self._identity: Identity | None = None
        self._base: tuple[KeyspaceSpec, ...] | None = None
        self._generation = 1
        self._facts: dict[int, RankFacts] = {}
        self._sent_specs: set[bytes] = set()
        self._tracked: dict[str, Tracked] = {}
        self._loads: dict[str, _Load] = {}
        self._holder = holder
        self._renewed_s = clock.now_s()
        self._meta = StepMeta(want_facts=1)
        self._matcher = Matcher(plan, settings, lookups, self.counters)
        self._saves = SavePlanner(plan, settings, holder, self.counters, ranks)

    @property
    def pending(self) -> bool:
        """Whether the engine must keep stepping though it has no requests: some save isn't done."""
        return self._saves.pending

    @property
    def waiting(self) -> bool:
        """Whether an answer, a load or a save is under way."""
        asked = any(t.match is not None and t.match.answered_s is None for t in self._tracked.values())
        return asked or bool(self._loads) or self._saves.pending

    # ------------------------------------------------------------ requests

    def arrive(self, request: EngineRequest, adapter: object | None) -> None:
        """A new request: its match begins now, before the engine has room for it."""
        saved = [0] * len(self._plan.groups)
        tracked = Tracked(request, adapter, saved, session_id=session_of(request))
        self._tracked[request.request_id] = tracked
        if adapter is None and self._base is not None:
            tracked.name(self._base)
        if request.block_hashes and (self._roles.loads or adapter is not None):
            self._ask(tracked)

    def offer(self, request: EngineRequest, local_tokens: int) -> int | None:
        """Tokens beyond `local_tokens` that the pool can give. None: not known yet, ask again next step."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or not self._roles.loads or len(self._loads) >= self._settings.load_queue_max:
            return 0
        self._take_answers()
        beyond = self._matcher.offer(tracked, self._identity, local_tokens, self._clock.now_s())
        tracked.offered = (local_tokens, beyond or 0)
        return beyond

    def taken(self, request: EngineRequest, table: BlockTable, tokens: int) -> None:
        """The engine took `tokens` of the offer and has blocks for them. 0: it loads nothing from here."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tokens <= 0:
            return
        local = tracked.offered[0]
        spans: list[Span] = []
        for number, group in enumerate(self._plan.groups):
            ids = table[group.index]
            end = min(len(ids), -(-(local + tokens) // group.block_tokens))
            first = max(local // group.block_tokens, group.first_needed(local + tokens))
            while first < end and ids[first] == self._holder.null_block:
                first += 1
            spans.append(Span(number, tracked.digests[number], first, ids[first:end]))
        transfer = Transfer(request.request_id, [span for span in spans if span.block_ids])
        tracked.used_tokens = local + tokens
        self._send_chain(tracked, transfer)
        self._send_specs(tracked)
        self._meta.loads.append(transfer)
        self._loads[request.request_id] = _Load(transfer, tracked)
        self.counters.add("load_requests")
        self.counters.add("match_hit_tokens", tokens)
        self._lookups.renew(self._leases(tracked))

    def take_stats(self) -> Stats:
        """What was counted since the last call."""
        return self.counters.take() | self._client_stats()

    def finish(self, request: EngineRequest, table: BlockTable) -> None:
        """The request is over; its blocks are freed after this call. `table`: of its computed tokens."""
        request_id = request.request_id
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return
        # While a load is under way, num_computed_tokens counts blocks that nothing was written to yet.
        if self._roles.saves and request_id not in self._loads:
            self._draft(tracked, table, request.num_computed_tokens)
            left = self._saves.unsaved_blocks(tracked, request.num_computed_tokens)
            self.counters.add("save_dropped_blocks", left, "late")
        del self._tracked[request_id]
        self._meta.forget.append(request_id)

    # ------------------------------------------------------------ steps

    def step(self, view: StepView) -> StepMeta:
        """What the workers are to do in this step."""
        now_s = self._clock.now_s()
        self._take_answers()
        if self._roles.saves:
            for request_id, tokens in view.scheduled.items():
                tracked = self._tracked.get(request_id)
                if tracked is None:
                    continue
                computed = tracked.request.num_computed_tokens + tokens
                if self._saves.unsaved_blocks(tracked, computed):
                    table = view.table(request_id)
                    if table is not None:
                        self._draft(tracked, table, computed)
            self._meta.job = self._saves.send(now_s)
        if now_s - self._renewed_s >= RENEW_EVERY_S:
            self._renewed_s = now_s
            leases = [lease for t in self._tracked.values() if t.used_tokens for lease in self._leases(t)]
            if leases:
                self._lookups.renew(leases)
        meta, self._meta = self._meta, StepMeta()
        active = self._roles.loads or self._roles.saves
        meta.want_facts = self._generation if active and self._identity is None else 0
        return meta

    def report(self, report: WorkerReport | None, finished_loads: Sequence[str]) -> None:
        """What the workers say after a step."""
        now_s = self._clock.now_s()
        if report is not None:
            for job_id, outcome in report.jobs.items():
                self._saves.report(job_id, outcome, self._tracked, now_s)
            for request_id, blocks in report.bad_loads.items():
                self._shun(request_id, blocks, now_s)
            self._learn(report.facts)
        for request_id in finished_loads:
            self._loads.pop(request_id, None)

    def reset(self) -> bool:
        """Clears what this engine may have put in the pool, and asks the workers for their weights again: a
        reset is how vLLM says that they may have changed. Requests under way use the pool no more."""
        self._take_answers()
        digests = {spec.digest() for spec in self._base or ()}
        for tracked in self._tracked.values():
            digests.update(tracked.digests)
            tracked.outdated = True
            tracked.used_tokens = 0
        self._generation += 1
        self._identity, self._base, self._facts = None, None, {}
        self._saves.seen.clear()
        return self._lookups.clear(sorted(digests | self._sent_specs))

    def close(self) -> None:
        """Ends the threads."""
        self._lookups.close()

    def validate(self) -> None:
        """Invariants that tests check after each step."""
        self._saves.validate()
        self._matcher.shunned.validate()
        assert len(self._loads) <= self._settings.load_queue_max
        for tracked in self._tracked.values():
            assert tracked.sent_hashes <= len(tracked.request.block_hashes)

    # ------------------------------------------------------------ parts

    def _ask(self, tracked: Tracked) -> None:
        self.counters.add("match_requests")
        self._matcher.ask(tracked, self._identity, self._clock.now_s(), match=self._roles.loads)

    def _take_answers(self) -> None:
        now_s = self._clock.now_s()
        for answer in self._lookups.take():
            tracked = self._tracked.get(answer.request_id)
            if tracked is None or tracked.outdated:
                continue
            self._matcher.accept(tracked, answer, now_s)
            if answer.ready and tracked.digests:
                self._saves.note_ready(tracked, answer.ready, now_s)

    def _draft(self, tracked: Tracked, table: BlockTable, computed_tokens: int) -> None:
        if len(table) <= max(group.index for group in self._plan.groups):
            return  # it never had blocks
        transfer = self._saves.draft(tracked, table, computed_tokens, self._clock.now_s())
        if transfer is not None:
            self._send_chain(tracked, transfer)
            self._send_specs(tracked)

    def _send_chain(self, tracked: Tracked, transfer: Transfer) -> None:
        """Gives the workers the hashes that they lack, up to the transfer's end."""
        end = max(
            self._plan.hash_count(self._plan.groups[span.group], span.first + len(span.block_ids))
            for span in transfer.spans
        )
        end = min(end, len(tracked.request.block_hashes))
        if end > tracked.sent_hashes:
            part = tracked.request.block_hashes[tracked.sent_hashes : end]
            packed = join_hashes(part)
            self._meta.chains.append(ChainPart(tracked.request_id, tracked.sent_hashes, packed, len(part[0])))
            tracked.sent_hashes = end

    def _send_specs(self, tracked: Tracked) -> None:
        for digest, spec in zip(tracked.digests, tracked.keyspaces or (), strict=True):
            if digest not in self._sent_specs:
                self._sent_specs.add(digest)
                self._meta.specs.append(spec)

    def _leases(self, tracked: Tracked) -> list[Lease]:
        leases = []
        for group, digest in zip(self._plan.groups, tracked.digests, strict=True):
            chain = self._plan.chain(group, tracked.request.block_hashes)
            end = tracked.used_tokens // group.block_tokens
            first = 0 if group.chained else group.first_needed(tracked.used_tokens)
            if end > first:
                leases.append(Lease(digest, chain[first:end]))
        return leases

    def _shun(self, request_id: str, blocks: list[tuple[int, int]], now_s: float) -> None:
        load = self._loads.get(request_id)
        if load is None:
            return
        chains = [self._plan.chain(g, load.tracked.request.block_hashes) for g in self._plan.groups]
        self._matcher.shun(load.tracked.digests, [(group, chains[group][at]) for group, at in blocks], now_s)
        load.tracked.load_failures += 1
        self.counters.add("load_failed_blocks", len(blocks))

    def _learn(self, facts: Mapping[int, RankFacts]) -> None:
        """Workers' facts; after the last one the keyspaces are known and waiting questions go out."""
        self._facts |= {rank: f for rank, f in facts.items() if f.generation == self._generation}
        if self._identity is not None or len(self._facts) < self._ranks:
            return
        try:
            self._identity = self._make_identity(self._facts)
            self._base = self._identity.specs(BASE_MODEL)
            for spec in self._base:
                spec.check()
                log.info("keyspace %s: %s", spec.digest().hex(), dict(spec.identity))
        except Exception as error:  # the cache is best effort: the engine goes on without it
            log.error("the pool is not used: %s", error, exc_info=not isinstance(error, MoonpoolError))
            self._identity, self._base, self._roles = None, None, Roles(loads=False, saves=False)
            return
        for tracked in self._tracked.values():
            if tracked.outdated:
                continue
            if tracked.adapter is None:
                tracked.name(self._base)
            if tracked.match is not None and tracked.match.answered_s is None:
                self._matcher.ask(tracked, self._identity, self._clock.now_s(), match=self._roles.loads)
