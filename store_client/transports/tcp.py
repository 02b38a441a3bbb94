"""Other hosts: a few data connections a node, payload straight from and into the client's memory."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.messages import Hello, LaneKeys, LaneRead, LaneWrite, NodeInfo, Status, decode_from_node
from moonpool.schemas.packed import U8, U32, U64, pack_u32, pack_u64
from moonpool.store_client.gate import Gate
from moonpool.store_client.rpc.connection import ConnectionPool
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.transports.base import ReadBatch, SpecOf, WriteBatch
from moonpool.store_client.transports.lane_pool import LanePool
from moonpool.store_client.transports.pieces import batches_of, split_evenly
from moonpool.store_client.transports.proof import judge, sent_of
from moonpool.store_client.transports.small_door import SmallDoor, is_small
from moonpool.store_client.workers import Workers

log = logging.getLogger(__name__)

EXCHANGE_BYTES = 32 << 20
"""Of one exchange: headers are looked at after the last byte, so a longer one would meet more evictions."""

EXCHANGE_OBJECTS = 4096
LANE_BYTES_MIN = 1 << 20
"""A smaller share isn't worth another lane."""


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
        self._workers = Workers(lanes, "moonpool-lane")
        self._gate = Gate(f"the tcp transport of {info.node}")

    def read(self, batch: ReadBatch, deadline_s: float) -> U8:
        """See Transport."""
        statuses = np.full(len(batch.slots), Status.FAILED, dtype=np.uint8)

        def share(objects: NDArray[np.intp]) -> None:
            for part in batches_of(batch.lengths[objects], EXCHANGE_OBJECTS, EXCHANGE_BYTES):
                index = objects[part]
                statuses[index] = self._read_part(batch, index, deadline_s)

        def small(door: SmallDoor) -> None:
            statuses[:] = door.read(batch, deadline_s)

        with self._gate:
            if self.door is not None and self.door.takes(batch):
                shares = [partial(small, self.door)]
            else:
                shares = [partial(share, group) for group in self._shares(batch.lengths)]
            self._spread(shares, deadline_s)
        return statuses

    def write(self, batches: Sequence[WriteBatch], deadline_s: float) -> list[U8]:
        """See Transport."""
        statuses = [np.full(batch.source.count, Status.FAILED, dtype=np.uint8) for batch in batches]

        def share(objects: NDArray[np.intp]) -> None:
            for i in objects.tolist():
                statuses[i] = self._write_one(batches[i], deadline_s)

        totals = np.array([int(batch.lengths.sum()) for batch in batches], dtype=np.uint64)
        with self._gate:
            self._spread([partial(share, group) for group in self._shares(totals)], deadline_s)
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

    def _spread(self, shares: Sequence[Callable[[], None]], deadline_s: float) -> None:
        """Does all shares, the first one in this thread. One that fails, or is never begun, leaves its
        statuses at FAILED."""

        def guarded(share: Callable[[], None]) -> None:
            try:
                share()
            except MoonpoolError as error:
                log.warning("transfer with %s failed: %s", self._peer, error)

        self._workers.run([partial(guarded, share) for share in shares], deadline_s)

    def _read_part(self, batch: ReadBatch, index: NDArray[np.intp], deadline_s: float) -> U8:
        if len(index) < batch.into.count:
            batch = batch.part(index)
        request = LaneRead(pack_u32(batch.slots), pack_u64(batch.generations), pack_u64(batch.lengths))
        into = batch.into
        spec = self._spec_of(batch.keyspace)
        statuses, headers = self._lanes.exchange(
            lambda lane: lane.read(request, into, deadline_s), spec, deadline_s
        )
        sent, there = sent_of(batch, statuses)
        judge(statuses, sent, there, headers)
        return statuses

    def _write_one(self, batch: WriteBatch, deadline_s: float) -> U8:
        if int(batch.lengths.max(initial=0)) > self._page_bytes:  # refused anyway: don't send it first
            return np.full(batch.source.count, Status.TOO_LARGE, dtype=np.uint8)
        if self.door is not None and is_small(batch):
            return self.door.write(batch, deadline_s)
        item = msgspec.structs.replace(batch.item, lengths=pack_u64(batch.lengths))
        # Random: the node's lanes share one session, whoever they belong to.
        request = LaneWrite(secrets.randbits(63), item, batch.visible)
        granted = self._lanes.exchange(
            lambda lane: lane.write(request, batch.source, deadline_s),
            self._spec_of(item.keyspace),
            deadline_s,
        )
        return np.frombuffer(granted.statuses, dtype=np.uint8).copy()
