"""Moves the blocks of one job between the engine's memory and the pool. Runs in the worker's I/O threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.connector.counters import Counters
from moonpool.connector.groups import GroupPlan
from moonpool.connector.layout import GroupLayout
from moonpool.connector.pool_client import BlockGet, BlockPut, PoolClient
from moonpool.connector.records import JobOutcome, Span, Transfer
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8

ORPHAN_RETRIES = 2
ORPHAN_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Place:
    """Which worker this is. `shard`: its rank in the keyspaces. `replica` of `replicas`: workers with equal KV
    share the writing. `engine_rank`: among the engine's workers."""

    engine_rank: int
    shard: int
    replica: int = 0
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Move:
    """A transfer with the hashes that each of its spans needs: up to its end, or of a flat one its own."""

    transfer: Transfer
    chains: list[Sequence[bytes]]


class BlockMover:
    """Thread-safe. Raises MoonpoolError where a call as a whole failed; one block's failure is in the answer."""

    def __init__(
        self,
        plan: GroupPlan,
        client: PoolClient,
        place: Place,
        layouts: Sequence[GroupLayout],
        counters: Counters,
    ) -> None:
        self.specs: dict[bytes, KeyspaceSpec] = {}
        """Keyspaces that jobs name; a spec is added before the first job that needs it."""
        self._plan = plan
        self._client = client
        self._place = place
        self._layouts = layouts
        self._counters = counters
        self._registered: set[bytes] = set()
        self._registering = threading.Lock()

    def load(self, move: Move, deadline_s: float) -> list[tuple[int, int]]:
        """(group, position) of the blocks that were not loaded."""
        bad: list[tuple[int, int]] = []
        for span, chain in zip(move.transfer.spans, move.chains, strict=True):
            group = self._plan.groups[span.group]
            if bad and not self._plan.fails_by_block:
                bad += blocks_of(span)  # the whole request is computed anyway
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
            self._counters.add("load_bytes", good * self._layouts[span.group].block_bytes)
        return bad

    def save(self, moves: Sequence[Move], turn: int, deadline_s: float) -> JobOutcome:
        """Offers this replica's part of the blocks. `turn` makes replicas take turns at single blocks."""
        spans = [span for move in moves for span in move.transfer.spans]
        chains = [chain for move in moves for chain in move.chains]
        owners = [move.transfer for move in moves for _ in move.transfer.spans]
        # Blocks that another replica writes count as done here: its own report decides.
        statuses = [np.full(len(span.block_ids), Status.EXISTS, dtype=np.uint8) for span in spans]
        shares = [self._share(len(s.block_ids), turn + n) for n, s in enumerate(spans)]
        todo = [number for number, part in enumerate(shares) if part.stop > part.start]
        for attempt in range(1 + ORPHAN_RETRIES):
            puts = [self._put(spans[n], chains[n], shares[n], owners[n], deadline_s) for n in todo]
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

    def _put(
        self, span: Span, chain: Sequence[bytes], part: slice, owner: Transfer, deadline_s: float
    ) -> BlockPut:
        self._register(span.keyspace, deadline_s)
        source = self._layouts[span.group].fragments(span.block_ids[part])
        chained = self._plan.groups[span.group].chained
        return BlockPut(
            span.keyspace,
            self._place.shard,
            chain if chained else chain[part],
            span.first + part.start if chained else 0,
            source,
            owner.request_id,
            owner.session_id,
        )

    def _count_saved(self, found: U8, block_bytes: int) -> None:
        written = int((found == Status.OK).sum())
        self._counters.add("save_blocks", written)
        self._counters.add("save_bytes", written * block_bytes)
        self._counters.add("save_known_blocks", int((found == Status.EXISTS).sum()))

    def _register(self, keyspace: bytes, deadline_s: float) -> None:
        with self._registering:
            if keyspace not in self._registered:
                self._client.register_keyspace(self.specs[keyspace], timeout_s=_left_s(deadline_s))
                self._registered.add(keyspace)


def blocks_of(span: Span) -> list[tuple[int, int]]:
    """(group, position) of each block."""
    return [(span.group, span.first + i) for i in range(len(span.block_ids))]


def _outcome_of(statuses: U8) -> JobOutcome:
    # BUSY: somebody else is writing it this moment.
    in_pool = np.isin(statuses, (Status.OK, Status.EXISTS, Status.BUSY))
    reasons = {Status(value).name: int((statuses == value).sum()) for value in np.unique(statuses[~in_pool])}
    return JobOutcome(1, in_pool.astype(np.uint8).tobytes(), reasons)


def _left_s(deadline_s: float) -> float:
    return max(0.001, deadline_s - time.monotonic())
