"""Other hosts: a few data connections a node, payload straight from and into the client's memory."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.messages import Hello, LaneKeys, LaneWrite, NodeInfo, Status, decode_from_node
from moonpool.schemas.packed import U8, U32, U64, pack_u32, pack_u64
from moonpool.store_client import native
from moonpool.store_client.gate import Gate
from moonpool.store_client.rpc.connection_pool import ConnectionPool
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.transports.attempts import attempt, attempt_all, failed
from moonpool.store_client.transports.base import ReadBatch, SpecOf, WriteBatch
from moonpool.store_client.transports.lane_pool import LanePool, Share
from moonpool.store_client.transports.lane_reads import LaneReads, WholeRead
from moonpool.store_client.transports.pieces import batches_of, split_evenly, total_bytes
from moonpool.store_client.transports.small_door import SmallDoor, is_small, is_small_read
from moonpool.store_client.workers import Workers

EXCHANGE_BYTES = 32 << 20
"""Of one exchange: headers are looked at after the last byte, so a longer one would meet more evictions."""

EXCHANGE_OBJECTS = 4096

THREADS_FROM_BYTES = 4 << 20
"""Of one read: from here on a thread a lane, where there are cores for them and for those who send."""

_FAILED = np.uint8(Status.FAILED)

CORES = os.cpu_count() or 1

LANE_BYTES_MIN = (1 if CORES >= 4 else 4) << 20
"""A smaller share isn't worth another lane: less so where the threads that bring it share a few cores with each other."""


class TcpTransport:
    """The Transport of any node. A device's memory needs staging in front of it."""

    name = "tcp"
    lands_late = False  # a lane that failed is closed, and what it still held is gone

    def __init__(
        self,
        info: NodeInfo,
        hello: Hello,
        lanes: int,
        spec_of: SpecOf,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """Connects when first used."""
        self._peer = info.data_address
        self._page_bytes = info.page_bytes
        self._spec_of = spec_of
        self._count = lanes
        self._lanes = LanePool(info.data_address, hello, lanes, credentials)
        self._rpc: ConnectionPool | None = None
        self.door: SmallDoor | None = None
        if info.rpc_address:
            self._rpc = ConnectionPool(info.rpc_address, hello, decode_from_node, credentials=credentials)
            self.door = SmallDoor(self._rpc, spec_of)
        self._served_in_c = native.HOT and credentials.bare
        """Whether this client is one of those whom lanes answer in C: they may see all."""
        self._workers = Workers(lanes, "moonpool-lane")
        self._gate = Gate(f"the tcp transport of {info.node}")

    def read(self, batch: ReadBatch, deadline_s: float) -> U8:
        """See Transport."""
        count, size_bytes = len(batch.slots), total_bytes(batch.lengths)
        with self._gate:
            # What the door takes too is quicker by a lane that answers in C, if it needn't be waited for.
            bare = self._served_in_c and self._lanes.has_room
            if not bare and self.door is not None and is_small_read(count, size_bytes):
                small = LaneReads(batch)
                attempt(self._peer, partial(self._read_small, self.door, small, deadline_s))
                return small.statuses
            if self._lanes.together and 0 < count <= EXCHANGE_OBJECTS and size_bytes < 2 * LANE_BYTES_MIN:
                return self._read_whole(batch, deadline_s)
            reads = LaneReads(batch)
            attempt_all(self._workers, self._peer, self._read_tasks(reads, deadline_s), deadline_s)
        return reads.judge()

    def write(self, batches: Sequence[WriteBatch], deadline_s: float) -> list[U8]:
        """See Transport."""
        statuses = [np.full(batch.source.count, Status.FAILED, dtype=np.uint8) for batch in batches]

        def share(objects: NDArray[np.intp]) -> None:
            for i in objects.tolist():
                statuses[i] = self._write_one(batches[i], deadline_s)

        totals = np.array([int(batch.lengths.sum()) for batch in batches], dtype=np.uint64)
        with self._gate:
            tasks = [partial(share, group) for group in self._shares(totals)]
            attempt_all(self._workers, self._peer, tasks, deadline_s)
        return statuses

    def key_texts(self, slots: U32, generations: U64, deadline_s: float) -> list[str]:
        """Of plain objects at these places; empty where there is none. For nodes. Raises MoonpoolError."""
        request = LaneKeys(pack_u32(slots), pack_u64(generations))
        with self._gate:
            return self._lanes.exchange(lambda lane: lane.key_texts(request, deadline_s), None, deadline_s)

    def prepare(self) -> None:
        """See Transport: lanes are quick to open."""

    def close(self) -> None:
        """See Transport."""
        if self._gate.forked or not self._gate.close():
            return
        self._lanes.close()
        if self._rpc is not None:
            self._rpc.close()
        self._gate.wait_empty()
        self._workers.close()

    def _shares(self, lengths: NDArray[np.uint64]) -> list[NDArray[np.intp]]:
        return split_evenly(lengths, self._count, LANE_BYTES_MIN)

    def _read_tasks(self, reads: LaneReads, deadline_s: float) -> list[Callable[[], None]]:
        """One a thread: one reads from several lanes at once, but from THREADS_FROM_BYTES on more copy faster, where there
        are cores for that."""
        lengths = reads.batch.lengths
        by_lane = [
            [
                (int(group[0]) + part.start, int(group[0]) + part.stop)
                for part in batches_of(lengths[group], EXCHANGE_OBJECTS, EXCHANGE_BYTES)
            ]
            for group in self._shares(lengths)
        ]
        if self._lanes.together and (CORES < 4 or total_bytes(lengths) < THREADS_FROM_BYTES):
            turns = zip_longest(*by_lane)
            shares = [share for turn in turns for share in turn if share is not None]
            return [partial(self._read, reads, shares, len(by_lane), deadline_s)]
        return [partial(self._read, reads, shares, 1, deadline_s) for shares in by_lane]

    def _read_small(self, door: SmallDoor, reads: LaneReads, deadline_s: float) -> None:
        reads.statuses[:] = door.read(reads.batch, deadline_s)

    def _read_whole(self, batch: ReadBatch, deadline_s: float) -> U8:
        """What is one share for one lane."""
        whole = WholeRead(batch)
        try:
            failures = self._lanes.exchange_all(whole, [(0, len(batch.slots))], None, 1, deadline_s)
        except MoonpoolError as failure:
            failures = [failure]
        for error in failures:
            failed(self._peer, error)
        return np.full(len(batch.slots), _FAILED) if whole.statuses is None else whole.statuses

    def _read(self, reads: LaneReads, shares: Sequence[Share], at_once: int, deadline_s: float) -> None:
        # Reads name no keyspace: no node refuses one that it doesn't know.
        for error in self._lanes.exchange_all(reads, shares, None, at_once, deadline_s):
            failed(self._peer, error)

    def _write_one(self, batch: WriteBatch, deadline_s: float) -> U8:
        if int(batch.lengths.max(initial=0)) > self._page_bytes:  # refused anyway: don't send it first
            return np.full(batch.source.count, Status.TOO_LARGE, dtype=np.uint8)
        if self.door is not None and is_small(batch):
            return self.door.write(batch, deadline_s)
        item = msgspec.structs.replace(batch.item, lengths=pack_u64(batch.lengths))
        # Random: the node's lanes share one session, whoever they belong to.
        request = LaneWrite(secrets.randbits(63), item, batch.visible, batch.direct)
        granted = self._lanes.exchange(
            lambda lane: lane.write(request, batch.source, deadline_s),
            self._spec_of(item.keyspace),
            deadline_s,
        )
        return np.frombuffer(granted.statuses, dtype=np.uint8).copy()
