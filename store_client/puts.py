"""Puts: ask the master what may be written where, write it there, give back the promises that weren't kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.keyspace import Kind
from moonpool.schemas.messages import (
    BeginItem,
    Done,
    PutAbandon,
    PutAnswer,
    PutItem,
    PutStart,
    PutStarted,
    Status,
)
from moonpool.schemas.packed import U8, U64, join_hashes
from moonpool.schemas.runs import STRIDE, shard_of, shards_of
from moonpool.store_client import permits
from moonpool.store_client.cluster import Cluster
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.nodes import Nodes
from moonpool.store_client.transports.ahead import key_bytes
from moonpool.store_client.transports.base import WriteBatch
from moonpool.store_client.transports.pieces import batches_of, runs_of_true
from moonpool.store_client.workers import Workers

log = logging.getLogger(__name__)

BATCH_BYTES = 32 << 20
"""Of one WriteBatch: small enough to be spread over lanes and to fit staging memory."""

BATCH_BLOCKS = 4096
PARTS_PER_CALL = 8192
BLOCKS_PER_CALL = 65536
"""Of one PutStart: what the master takes."""

ABANDON_TIMEOUT_S = 0.25
"""Promises expire by themselves; giving them back early is a courtesy that must not cost much."""

_OK, _EXISTS = np.uint8(Status.OK), np.uint8(Status.EXISTS)
"""Compared with arrays of statuses: a fifth of an enum's time."""

_STATUS_OF = np.full(256, Status.FAILED, dtype=np.uint8)
_STATUS_OF[PutAnswer.EXISTS] = Status.EXISTS
_STATUS_OF[PutAnswer.BUSY] = Status.BUSY
_STATUS_OF[PutAnswer.NO_PARENT] = Status.NO_PARENT
_STATUS_OF[PutAnswer.NO_NODE] = Status.NO_SPACE
_STATUS_OF[PutAnswer.QUOTA] = Status.QUOTA


@dataclass(frozen=True, slots=True, eq=False)
class PutPart:
    """Blocks of one run (or any rows of a flat keyspace) of one rank, and their bytes. `keys`: of plain objects."""

    keyspace: bytes
    kind: Kind
    rank: int
    position: int
    parent: bytes
    hashes: Sequence[bytes]
    run_root: bytes
    lengths: U64
    source: Fragments
    keys: Sequence[str] = field(default=())
    visible: bool = False
    shard: int = 0
    request_id: str = ""
    session_id: str = ""

    @property
    def rows(self) -> permits.Rows:
        """Which rows these are of."""
        return permits.Rows(self.keyspace, self.rank, self.shard)

    def item(self) -> PutItem:
        """What the master is asked."""
        lengths = self.lengths.tolist()
        largest = max(map(int.__add__, lengths, key_bytes(self.keys)) if self.keys else lengths)
        hashes = join_hashes(self.hashes)
        return PutItem(
            self.keyspace,
            self.rank,
            self.position,
            self.parent,
            hashes,
            largest,
            self.shard,
            self.request_id,
            self.session_id,
        )

    def items(self, shards: int) -> list[tuple[PutPart, NDArray[np.intp]]]:
        """The same in parts that are an item of a PutStart each: of one shard and no longer than a run. And which of
        its blocks are in each."""
        return [
            (piece if len(index) <= STRIDE else piece.take(cut, piece.shard), index[cut])
            for piece, index in self._by_shard(shards)
            for cut in np.split(np.arange(len(index)), range(STRIDE, len(index), STRIDE))
        ]

    def _by_shard(self, shards: int) -> list[tuple[PutPart, NDArray[np.intp]]]:
        every = np.arange(len(self.hashes))
        if shards == 1 or not len(every):
            return [(self, every)]
        if self.kind is Kind.CHAINED:  # one run
            return [(replace(self, shard=shard_of(self.keyspace, self.run_root, shards)), every)]
        numbers = shards_of(self.keyspace, join_hashes(self.hashes), len(self.hashes[0]), shards)
        return [
            (self.take(np.flatnonzero(numbers == shard), shard), np.flatnonzero(numbers == shard))
            for shard in np.unique(numbers).tolist()
        ]

    def take(self, index: NDArray[np.intp], shard: int) -> PutPart:
        """Some of the blocks, in that shard."""
        return replace(
            self,
            hashes=[self.hashes[i] for i in index.tolist()],
            lengths=self.lengths[index],
            source=self.source.take(index),
            keys=[self.keys[i] for i in index.tolist()] if self.keys else (),
            shard=shard,
        )

    def batch(self, first: int, end: int, direct: bool) -> WriteBatch:
        """Blocks first to end, for a node."""
        chained = self.kind is Kind.CHAINED
        item = BeginItem(
            keyspace=self.keyspace,
            rank=self.rank,
            position=self.position + first if chained else 0,
            parent=self.hashes[first - 1] if chained and first else self.parent,
            hashes=join_hashes(self.hashes[first:end]),
            lengths=b"" if chained else self.lengths[first:end].astype("<u8").tobytes(),
            keys=list(self.keys[first:end]),
            shard=self.shard,
        )
        whole = end - first == self.source.count
        source = self.source if whole else self.source.take(np.arange(first, end))
        return WriteBatch(item, self.lengths[first:end], source, self.visible, direct)


@dataclass(slots=True, eq=False)
class _Write:
    """A WriteBatch and where its statuses belong."""

    part: int
    first: int
    batch: WriteBatch


class Putter:
    """One PutStart for all parts, then one write to each node that was named."""

    def __init__(self, cluster: Cluster, nodes: Nodes, workers: Workers) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._workers = workers
        self.permits = permits.Permits()

    def put(self, parts: Sequence[PutPart], deadline_s: float) -> list[U8]:
        """A Status array a part. Raises nothing: an unreachable master or node gives FAILED."""
        try:
            shards = self._cluster.shards(deadline_s)
        except MoonpoolError as error:
            log.debug("put refused: %s", error)
            return [np.full(len(part.hashes), Status.FAILED, dtype=np.uint8) for part in parts]
        if shards == 1 and all(len(part.hashes) <= STRIDE for part in parts):
            return self._put_parts(parts, deadline_s)
        cut = [part.items(shards) for part in parts]
        outcomes = iter(self._put_parts([piece for pieces in cut for piece, _ in pieces], deadline_s))
        statuses = [np.zeros(len(part.hashes), dtype=np.uint8) for part in parts]
        for status, pieces in zip(statuses, cut, strict=True):
            for _, index in pieces:
                status[index] = next(outcomes)
        return statuses

    def _put_parts(self, parts: Sequence[PutPart], deadline_s: float) -> list[U8]:
        blocks = np.array([len(part.hashes) for part in parts], dtype=np.uint64)
        groups = batches_of(blocks, PARTS_PER_CALL, BLOCKS_PER_CALL)
        return [status for group in groups for status in self._put(parts[group], deadline_s)]

    def _put(self, parts: Sequence[PutPart], deadline_s: float) -> list[U8]:
        segments = self._direct_segments(parts, deadline_s)
        if segments is None:
            return self._ask_and_put(parts, deadline_s)
        return self._put_direct(parts, segments, deadline_s)

    def _direct_segments(self, parts: Sequence[PutPart], deadline_s: float) -> list[bytes] | None:
        """Where each part may be put without asking; None: not all may. A key that is named twice is asked for: the
        master says BUSY of the second."""
        now_s = time.monotonic()
        size_bytes = sum(int(part.lengths.sum()) for part in parts)
        segments = [self.permits.segment(part.rows, size_bytes, now_s) for part in parts if part.visible]
        known = [segment for segment in segments if segment is not None]
        if not parts or len(known) < len(parts):
            return None
        hashes = [block_hash for part in parts for block_hash in part.hashes]
        links = [self._nodes.find(segment, deadline_s) for segment in set(known)]
        direct = all(link is not None and link.takes_direct for link in links)
        return known if direct and len(set(hashes)) == len(hashes) else None

    def _put_direct(self, parts: Sequence[PutPart], segments: Sequence[bytes], deadline_s: float) -> list[U8]:
        statuses = [np.full(len(part.hashes), Status.FAILED, dtype=np.uint8) for part in parts]
        writes: dict[bytes, list[_Write]] = {}
        for i, (part, segment) in enumerate(zip(parts, segments, strict=True)):
            whole = [(0, len(part.hashes))]
            self._plan(writes.setdefault(segment, []), part, i, whole, direct=True)
        self._write_all(writes, statuses, deadline_s)
        return self.ask_again(parts, statuses, deadline_s)

    def ask_again(self, parts: Sequence[PutPart], statuses: list[U8], deadline_s: float) -> list[U8]:
        """The end of direct puts that have come to `statuses`, which may be changed: of what is BUSY, or too large for that
        node, the master is asked; of all where the node did nothing: it may be gone. Whoever meets such asks the next time."""
        again: list[tuple[int, NDArray[np.intp]]] = []
        for i, (part, status) in enumerate(zip(parts, statuses, strict=True)):
            if status.any():
                self.permits.take(part.rows)
                refused = (status == Status.BUSY) | (status == Status.TOO_LARGE)
                index = np.flatnonzero(refused | (status == Status.FAILED).all())
                if len(index):
                    again.append((i, index))
        asked = [parts[i].take(index, parts[i].shard) for i, index in again]
        for (i, index), status in zip(again, self._ask_and_put(asked, deadline_s), strict=True):
            statuses[i][index] = status
        return statuses

    def _ask_and_put(self, parts: Sequence[PutPart], deadline_s: float) -> list[U8]:
        if not parts:
            return []
        asked_s = time.monotonic()
        try:
            request = PutStart([part.item() for part in parts])
            started = self._cluster.ask(request, PutStarted, deadline_s)
        except MoonpoolError as error:
            log.debug("put refused: %s", error)
            return [np.full(len(part.hashes), Status.FAILED, dtype=np.uint8) for part in parts]
        return self.put_as_told(parts, started, asked_s, deadline_s)

    def put_as_told(
        self, parts: Sequence[PutPart], started: PutStarted, asked_s: float, deadline_s: float
    ) -> list[U8]:
        """What is left of a put once a master has answered."""
        statuses = [np.full(len(part.hashes), Status.FAILED, dtype=np.uint8) for part in parts]
        sizes = [len(answers) for answers in started.answers]
        if sizes != [len(part.hashes) for part in parts] or len(started.segments) != len(parts):
            log.debug("put refused: %s answers with PutStarted of another size", self._cluster.name)
            return statuses
        for part, segment, direct_ms in zip(parts, started.segments, started.direct_ms, strict=False):
            if direct_ms and part.visible:
                self.permits.give(part.rows, segment, asked_s, direct_ms, started.direct_bytes)
        writes: dict[bytes, list[_Write]] = {}
        goes: list[NDArray[np.bool_]] = []
        for i, (part, packed, segment) in enumerate(
            zip(parts, started.answers, started.segments, strict=True)
        ):
            if not any(packed):  # the usual case: GO for all of them
                self._plan(writes.setdefault(segment, []), part, i, [(0, len(packed))])
                goes.append(np.ones(len(packed), dtype=np.bool_))
                continue
            answers = np.frombuffer(packed, dtype=np.uint8)
            statuses[i] = _STATUS_OF[answers]
            if (answers == PutAnswer.NO_NODE).any():
                page_bytes = np.uint64(self._nodes.page_bytes(deadline_s) or 1 << 63)
                statuses[i][(answers == PutAnswer.NO_NODE) & (part.lengths > page_bytes)] = Status.TOO_LARGE
            goes.append(answers == PutAnswer.GO)
            if goes[-1].any():
                self._plan(writes.setdefault(segment, []), part, i, runs_of_true(goes[-1]))
        self._write_all(writes, statuses, deadline_s)
        self.abandon(parts, goes, statuses, deadline_s)
        return statuses

    def _write_all(self, writes: dict[bytes, list[_Write]], statuses: list[U8], deadline_s: float) -> None:
        self._workers.run(
            [partial(self._write, segment, mine, statuses, deadline_s) for segment, mine in writes.items()],
            deadline_s,
        )

    @staticmethod
    def _plan(
        writes: list[_Write],
        part: PutPart,
        number: int,
        runs: Sequence[tuple[int, int]],
        direct: bool = False,
    ) -> None:
        """Adds the batches of these stretches of a part."""
        for first, end in runs:
            for cut in batches_of(part.lengths[first:end], BATCH_BLOCKS, BATCH_BYTES):
                batch = part.batch(first + cut.start, first + cut.stop, direct)
                writes.append(_Write(number, first + cut.start, batch))

    def _write(self, segment: bytes, writes: Sequence[_Write], statuses: list[U8], deadline_s: float) -> None:
        link = self._nodes.find(segment, deadline_s)
        if link is None:
            return
        batches = [write.batch for write in writes]
        outcomes = link.write(batches, deadline_s)
        now = self._nodes.started_anew(segment, link, outcomes, deadline_s)
        if now is not None:
            outcomes = now.write(batches, deadline_s)
        for write, outcome in zip(writes, outcomes, strict=True):
            statuses[write.part][write.first : write.first + len(outcome)] = outcome

    def abandon(
        self,
        parts: Sequence[PutPart],
        goes: Sequence[NDArray[np.bool_]],
        statuses: Sequence[U8],
        deadline_s: float,
    ) -> None:
        """Gives back the promises of blocks that were to be written and weren't."""
        lost: dict[tuple[bytes, int, int], list[bytes]] = {}
        for part, go, status in zip(parts, goes, statuses, strict=True):
            done = (status == _OK) | (status == _EXISTS)
            if done.all():
                continue
            for i in np.flatnonzero(go & ~done).tolist():
                lost.setdefault((part.keyspace, part.rank, part.shard), []).append(part.hashes[i])
        if lost:
            deadline_s = max(deadline_s, time.monotonic() + ABANDON_TIMEOUT_S)
        for (keyspace, rank, shard), hashes in lost.items():
            try:
                self._cluster.ask(PutAbandon(keyspace, rank, join_hashes(hashes), shard), Done, deadline_s)
            except MoonpoolError as error:
                log.debug("promises of %d blocks left to expire: %s", len(hashes), error)
