"""Questions to the pool, off the scheduler's thread: whose blocks, how many are there, keep them.

The seam is Lookups; PoolLookups asks a real pool, tests hand in a stub that answers when they say so.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moonpool.connector.counters import Counters
from moonpool.connector.identity import BASE_MODEL, Identity
from moonpool.connector.pool_client import PoolClient
from moonpool.connector.workers import RunnerMaker, Workers
from moonpool.schemas.errors import DeadlineExceeded, MoonpoolError
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.store_client.tracing import Spans, no_spans

log = logging.getLogger(__name__)

Ready = tuple[int | Sequence[bool], ...]


@dataclass(frozen=True, slots=True)
class Question:
    """How much of this chain is in the pool? `adapter`: opaque to all but the adapter reader (None: base model).
    `match`: off where only the keyspaces are wanted."""

    request_id: str
    ticket: int
    identity: Identity
    hashes: list[bytes]
    adapter: object | None
    match: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """`specs` is empty where the request can't share blocks at all. `ready` is empty where nobody could say."""

    request_id: str
    ticket: int
    specs: tuple[KeyspaceSpec, ...]
    ready: Ready


@dataclass(frozen=True, slots=True)
class Lease:
    """Blocks of one keyspace in use: the hashes up to the last one used (flat: only those used)."""

    keyspace: bytes
    hashes: Sequence[bytes]


class Lookups(Protocol):
    """Never blocks, but for clear() and close()."""

    def ask(self, question: Question) -> bool:
        """False where too many are waiting."""
        ...

    def take(self) -> list[Answer]:
        """Answers since the last call."""
        ...

    def renew(self, leases: list[Lease]) -> bool:
        """Keeps blocks in use. False where too many are waiting: the next round will do."""
        ...

    def clear(self, keyspaces: Sequence[bytes]) -> bool:
        """Removes all blocks of these keyspaces; waits for it."""
        ...

    def close(self) -> None:
        """Ends the threads."""
        ...


class PoolLookups:
    """Asks a PoolClient. Renewals have a thread of their own, so that they never delay a match."""

    def __init__(
        self,
        client: PoolClient,
        counters: Counters,
        *,
        timeout_s: float,
        adapter_digest: Callable[[object], str | None],
        queue_max: int = 1024,
        make_runner: RunnerMaker = Workers,
        spans: Spans = no_spans,
    ) -> None:
        """`adapter_digest`: digest of an adapter's content, None where it can't be read."""
        self._client = client
        self._counters = counters
        self._timeout_s = timeout_s
        self._adapter_digest = adapter_digest
        self._spans = spans
        self._answers: deque[Answer] = deque()
        self._registered: set[bytes] = set()
        self._questions = make_runner("match", self._handle, threads=2, queue_max=queue_max)
        self._renewals = make_runner("renew", self._renew, threads=1, queue_max=16)

    def ask(self, question: Question) -> bool:
        """See Lookups."""
        return self._questions.submit(question)

    def take(self) -> list[Answer]:
        """See Lookups."""
        answers: list[Answer] = []
        while self._answers:
            answers.append(self._answers.popleft())
        return answers

    def renew(self, leases: list[Lease]) -> bool:
        """See Lookups."""
        return self._renewals.submit(leases)

    def clear(self, keyspaces: Sequence[bytes]) -> bool:
        """See Lookups. One deadline for all, in shares of what is left: nodes that don't confirm the first keyspace
        must not leave the others uncleared."""
        deadline_s = time.monotonic() + self._timeout_s
        try:
            for index, keyspace in enumerate(keyspaces):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise DeadlineExceeded(peer="the pool", what="clear", timeout_s=self._timeout_s)
                self._client.clear(keyspace, timeout_s=left_s / (len(keyspaces) - index))
        except MoonpoolError as error:
            log.warning("the pool was not cleared: %s", error)
            return False
        return True

    def close(self) -> None:
        """See Lookups."""
        self._client.close()  # first: calls under way then end soon
        self._questions.close()
        self._renewals.close()

    def _handle(self, question: Question) -> None:
        specs: tuple[KeyspaceSpec, ...] = ()
        ready: Ready = ()
        try:
            adapter = BASE_MODEL if question.adapter is None else self._adapter_digest(question.adapter)
            if adapter is not None:
                specs = question.identity.specs(adapter)
                if question.match:
                    with self._spans("connector.match", b"", len(question.hashes), question.request_id):
                        ready = self._ready(question, specs)
        except MoonpoolError as error:
            self._counters.add("match_failures")
            log.debug("no answer for %s: %s", question.request_id, error)
        finally:
            self._answers.append(Answer(question.request_id, question.ticket, specs, ready))

    def _ready(self, question: Question, specs: tuple[KeyspaceSpec, ...]) -> Ready:
        ready: list[int | Sequence[bool]] = []
        for group, spec in zip(question.identity.plan.groups, specs, strict=True):
            keyspace = spec.digest()
            if keyspace not in self._registered:
                self._client.register_keyspace(spec, timeout_s=self._timeout_s)
                self._registered.add(keyspace)
            chain = question.identity.plan.chain(group, question.hashes)
            if spec.kind is Kind.CHAINED:
                ready.append(self._client.match(keyspace, chain, timeout_s=self._timeout_s))
            else:
                ready.append(self._client.presence(keyspace, chain, timeout_s=self._timeout_s))
        return tuple(ready)

    def _renew(self, leases: list[Lease]) -> None:
        for lease in leases:
            try:
                self._client.renew(lease.keyspace, lease.hashes, timeout_s=self._timeout_s)
                self._counters.add("renewals")
            except MoonpoolError as error:
                log.debug("a lease was not renewed: %s", error)
                return  # the master is away: the others would only wait for it too
