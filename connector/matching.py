"""How much of a request the pool can give: asked in time, answered from memory, never waited for."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.connector.counters import Counters
from moonpool.connector.expiring import ExpiringSet
from moonpool.connector.groups import GroupPlan
from moonpool.connector.identity import Identity
from moonpool.connector.lookups import Answer, Lookups, Question, Ready
from moonpool.connector.tracked import Match, Tracked
from moonpool.schemas.config import ConnectorSettings

ANSWER_LIFETIME_S = 2.0
"""Shorter than the lease that a match takes (3 s): what was found must still be there when the load begins."""
LOAD_FAILURES_MAX = 2
"""A request whose loads failed so often is computed, whatever the pool says."""
SHUNNED_MAX = 65536


class Matcher:
    """One question at a time for each request; a new one where the answer is old or the chain has grown."""

    def __init__(
        self, plan: GroupPlan, settings: ConnectorSettings, lookups: Lookups, counters: Counters
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._lookups = lookups
        self._counters = counters
        self._tickets = 0
        self._nameless = False
        """Whether a request has waited in vain for the identity: until it is known, no other one waits."""
        self.shunned = ExpiringSet(settings.shun_s, SHUNNED_MAX)

    def ask(self, tracked: Tracked, identity: Identity | None, now_s: float, *, match: bool = True) -> None:
        """Sends the question, or notes that one is due where the identity isn't known yet."""
        hashes = tracked.request.block_hashes
        waiting = tracked.match
        asked_s = waiting.asked_s if waiting is not None and waiting.answered_s is None else now_s
        self._tickets += 1
        tracked.match = Match(self._tickets, asked_s, len(hashes))
        if identity is None:
            return
        question = Question(tracked.request_id, self._tickets, identity, list(hashes), tracked.adapter, match)
        if not self._lookups.ask(question):
            self._counters.add("match_dropped")
            tracked.match.answered_s = now_s

    def accept(self, tracked: Tracked, answer: Answer, now_s: float) -> None:
        """Takes in an answer; one to an older question is dropped."""
        match = tracked.match
        if match is None or match.ticket != answer.ticket:
            return
        match.answered_s = now_s
        match.ready = answer.ready
        if answer.specs and tracked.keyspaces is None:
            tracked.name(answer.specs)

    def offer(
        self, tracked: Tracked, identity: Identity | None, local_tokens: int, now_s: float
    ) -> int | None:
        """Tokens beyond `local_tokens` that the pool can give; None: ask again next step."""
        if tracked.outdated or tracked.load_failures >= LOAD_FAILURES_MAX:
            return 0
        count = len(tracked.request.block_hashes)
        if count * self._plan.hash_tokens <= local_tokens:
            return 0
        match = tracked.match
        if match is None or self._outlived(match, count, now_s):
            self.ask(tracked, identity, now_s)
            match = tracked.match
            assert match is not None
        if match.answered_s is None:
            return self._wait(match, identity, now_s)
        if not match.ready:
            return 0
        tokens = self._plan.longest_hit(
            self._without_shunned(tracked, match.ready, now_s), tracked.request.num_tokens
        )
        beyond = max(0, tokens - local_tokens)
        return beyond if beyond >= max(1, self._settings.min_hit_tokens) else 0

    def shun(self, tracked_digests: Sequence[bytes], blocks: list[tuple[int, bytes]], now_s: float) -> None:
        """These (group, hash) failed to load: no hit reaches over them for a while."""
        self.shunned.expire(now_s)
        self.shunned.add((tracked_digests[group] + block for group, block in blocks), now_s)

    def _outlived(self, match: Match, count: int, now_s: float) -> bool:
        if match.answered_s is None:
            return False
        return match.hash_count != count or now_s - match.answered_s > ANSWER_LIFETIME_S

    def _wait(self, match: Match, identity: Identity | None, now_s: float) -> int | None:
        self._nameless &= identity is None
        if not self._nameless and now_s - match.asked_s < self._settings.match_timeout_s:
            return None
        self._nameless = identity is None
        if not match.gave_up:
            match.gave_up = True
            self._counters.add("match_timeouts")
        return 0

    def _without_shunned(self, tracked: Tracked, ready: Ready, now_s: float) -> Ready:
        """The answer, cut at the first block that failed to load lately."""
        if not len(self.shunned):
            return ready
        cut: list[int | Sequence[bool]] = []
        for group, digest, found in zip(self._plan.groups, tracked.digests, ready, strict=True):
            chain = self._plan.chain(group, tracked.request.block_hashes)
            good = [not self.shunned.holds(digest + block, now_s) for block in chain]
            if isinstance(found, int):
                cut.append(min(found, good.index(False)) if False in good else found)
            else:
                cut.append([bit and fine for bit, fine in zip(found, good, strict=False)])
        return tuple(cut)
