"""What travels between the scheduler half and the worker halves, every step. Pickled by vLLM; nothing of vLLM's in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from moonpool.schemas.keyspace import KeyspaceSpec


@dataclass(slots=True)
class ChainPart:
    """Block hashes of a request that the workers don't have yet, from the `start`-th on, packed."""

    request_id: str
    start: int
    hashes: bytes
    hash_bytes: int


@dataclass(slots=True)
class Span:
    """Consecutive blocks of one group of one request: the block at position `first + i` is `block_ids[i]`.

    `group` counts the groups that the pool serves, not vLLM's.
    """

    group: int
    keyspace: bytes
    first: int
    block_ids: list[int]


@dataclass(slots=True)
class Transfer:
    """The blocks to load or save for one request; `spans` are of one request, in order of group. `session_id`: what the
    request says it belongs to, if anything."""

    request_id: str
    spans: list[Span]
    session_id: str = ""

    @property
    def block_count(self) -> int:
        """Blocks over all spans."""
        return sum(len(span.block_ids) for span in self.spans)


@dataclass(slots=True)
class SaveJob:
    """All saves of one step."""

    job_id: int
    transfers: list[Transfer]


@dataclass(slots=True)
class StepMeta:
    """Scheduler to workers. Order of work: `specs`, `chains`, `loads`, `job`, then `forget`.

    `want_facts`: not 0 while the scheduler lacks the workers' RankFacts of that generation.
    """

    specs: list[KeyspaceSpec] = field(default_factory=list)
    chains: list[ChainPart] = field(default_factory=list)
    loads: list[Transfer] = field(default_factory=list)
    job: SaveJob | None = None
    forget: list[str] = field(default_factory=list)
    want_facts: int = 0


@dataclass(slots=True)
class RankFacts:
    """What only a worker knows of its KV and weights.

    `generation`: of the question. `shard`: its rank in the keyspaces; workers with equal KV have the same.
    `shard_bytes`, `layouts`: one a group. `weights`: digest over a sample of every tensor.
    `facts`: others that the bytes depend on, such as KV scales.
    """

    generation: int
    shard: int
    shard_bytes: tuple[int, ...]
    layouts: tuple[str, ...]
    weights: str
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class JobOutcome:
    """How a SaveJob went on `ranks` ranks: one byte a block over all its spans, 1 where it is in the pool for
    all of them. `reasons` counts the others by Status name."""

    ranks: int
    in_pool: bytes
    reasons: dict[str, int]

    def merge(self, other: JobOutcome) -> None:
        """Takes in the outcome on other ranks."""
        self.ranks += other.ranks
        both = int.from_bytes(self.in_pool, "big") & int.from_bytes(other.in_pool, "big")
        self.in_pool = both.to_bytes(len(self.in_pool), "big")
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count


@dataclass(slots=True)
class WorkerReport:
    """Workers to scheduler. `bad_loads`: (group, position) of every block of a request that was not loaded.
    `facts`: by the worker's rank in the engine."""

    jobs: dict[int, JobOutcome] = field(default_factory=dict)
    bad_loads: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    facts: dict[int, RankFacts] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.jobs or self.bad_loads or self.facts)

    def merge(self, other: WorkerReport) -> None:
        """Takes in the report of other workers of the same step."""
        for job_id, outcome in other.jobs.items():
            mine = self.jobs.get(job_id)
            if mine is None:
                self.jobs[job_id] = outcome
            else:
                mine.merge(outcome)
        for request_id, blocks in other.bad_loads.items():
            self.bad_loads.setdefault(request_id, []).extend(blocks)
        self.facts.update(other.facts)
