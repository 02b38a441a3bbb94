"""Which node owns which segment, and how this client talks to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from moonpool.schemas.errors import MoonpoolError, TransferFailed
from moonpool.schemas.messages import (
    BeginItem,
    ClusterMap,
    GetClusterMap,
    Located,
    NodeInfo,
    PutSmall,
    Status,
)
from moonpool.schemas.packed import U8, U64, all_zero
from moonpool.store_client.cluster import Cluster
from moonpool.store_client.guard import Guard
from moonpool.store_client.telemetry import TransferCounts
from moonpool.store_client.transports.base import FewObjects, ReadBatch, Transport, WriteBatch
from moonpool.store_client.transports.pieces import total_bytes
from moonpool.store_client.transports.shm import ShmTransport
from moonpool.store_client.transports.tcp import TcpTransport

log = logging.getLogger(__name__)

REFRESH_PAUSE_S = 0.25
"""The cluster map is asked for no more often than this, however many segments are unknown."""

_OK, _FAILED = np.uint8(Status.OK), np.uint8(Status.FAILED)
"""Compared with arrays of statuses: a fifth of an enum's time."""

_KNOWN: U8 = np.full(256, Status.FAILED, dtype=np.uint8)
_KNOWN[list(Status)] = list(Status)
_KNOWN_BYTES = _KNOWN.tobytes()
"""What statuses of a node mean: one that nobody here has heard of is a failure."""

Connect = Callable[[NodeInfo], Transport]


class NodeLink:
    """A node's transport behind a circuit breaker. Statuses only: nothing is raised."""

    def __init__(self, info: NodeInfo, transport: Transport, retry_s: float, counts: TransferCounts) -> None:
        self.info = info
        self.transport = transport
        self.failed = False
        """Whether the last call found the node unable to answer: the map may be out of date."""
        self._guard = Guard(info.node, retry_s)
        self._counts = counts

    @property
    def open_breaker(self) -> bool:
        """Whether the node failed lately, and hasn't answered since."""
        return self._guard.open

    @property
    def takes_direct(self) -> bool:
        """Whether direct puts may go this way."""
        return self.transport.name in (ShmTransport.name, TcpTransport.name)

    def read(self, batch: ReadBatch, deadline_s: float) -> U8:
        """As Transport.read; all FAILED at once where the node failed lately."""
        start_s = time.monotonic()
        try:
            statuses, moved_bytes = self._guard.ask(self._read, batch, deadline_s)
        except MoonpoolError:
            return self._failed("load", [batch.lengths])[0]
        self._went("load", start_s, moved_bytes)
        return statuses

    def _read(self, batch: ReadBatch, deadline_s: float) -> tuple[U8, int]:
        """Statuses that are known here, and how many bytes came. Raises TransferFailed where none did."""
        statuses = self.transport.read(batch, deadline_s)
        if all_zero(statuses):  # the usual case
            return statuses, total_bytes(batch.lengths)
        (statuses,), moved_bytes = self._judged([statuses], [batch.lengths])
        return statuses, moved_bytes

    def read_few(self, objects: FewObjects, located: Located, deadline_s: float) -> bool:
        """Whether all of these objects have come. Else nothing is said of them: `read` has the outcome of each."""
        transport = self.transport
        if not isinstance(transport, ShmTransport):
            return False
        start_s = time.monotonic()
        try:
            came = self._guard.ask(partial(transport.read_few, objects), located, deadline_s)
        except MoonpoolError:
            return False
        if came:
            self._went("load", start_s, objects.size_bytes)
        return came

    def write(self, batches: Sequence[WriteBatch], deadline_s: float) -> list[U8]:
        """As Transport.write; all FAILED at once where the node failed lately."""
        lengths, start_s = [batch.lengths for batch in batches], time.monotonic()
        try:
            with self._guard.call(start_s):
                statuses, moved_bytes = self._judged(self.transport.write(batches, deadline_s), lengths)
        except MoonpoolError:
            return self._failed("save", lengths)
        self._went("save", start_s, moved_bytes)
        return statuses

    def put_small(self, message: PutSmall, deadline_s: float) -> bytes | None:
        """`write` of a few small objects, in one message: a Status byte each. None: it takes no such messages."""
        door = self.transport.door
        if door is None:
            return None
        return self._put_few(message.item, lambda: door.put(message, deadline_s))

    def put_direct(self, batch: WriteBatch, deadline_s: float) -> bytes | None:
        """`write` of a few objects of a flat keyspace that no master was asked about: a Status byte each. None, and nothing was
        put: they go the batches' way."""
        transport = self.transport
        if isinstance(transport, (ShmTransport, TcpTransport)):
            return self._put_few(batch.item, lambda: transport.write([batch], deadline_s)[0].tobytes())
        return None

    def _put_few(self, item: BeginItem, put: Callable[[], bytes | None]) -> bytes | None:
        way, start_s, count = (self.transport.name, "save"), time.monotonic(), len(item.lengths) // 8
        try:
            with self._guard.call(start_s):
                statuses = put()
                if statuses is None:
                    return None
                lengths = memoryview(item.lengths).cast("Q")
                if any(statuses):
                    statuses = statuses.translate(_KNOWN_BYTES)
                    if statuses.count(Status.FAILED) == count:
                        raise TransferFailed(peer=self.info.node, reason="nothing went through")
                    each = zip(statuses, lengths, strict=True)
                    moved = sum(length for status, length in each if status == Status.OK)
                else:
                    moved = sum(lengths)
                self.failed = False
        except MoonpoolError as error:
            log.debug("put into %s failed: %s", self.info.node, error)
            self.failed = True
            self._counts.failed(way)
            return bytes([Status.FAILED]) * count
        self._counts.add(way, time.monotonic() - start_s, moved)
        return statuses

    def _judged(self, statuses: list[U8], lengths: Sequence[U64]) -> tuple[list[U8], int]:
        """Statuses that are known here, and how many bytes went through. Raises TransferFailed where none did."""
        if not any(map(np.count_nonzero, statuses)):  # all are OK, the usual case
            return statuses, sum(map(total_bytes, lengths))
        statuses = [_KNOWN[part] for part in statuses]
        if all((part == _FAILED).all() for part in statuses):
            raise TransferFailed(peer=self.info.node, reason="nothing went through")
        good = [part == _OK for part in statuses]
        return statuses, sum(int(part[moves].sum()) for part, moves in zip(lengths, good, strict=True))

    def _went(self, direction: str, start_s: float, moved_bytes: int) -> None:
        self.failed = False
        self._counts.add((self.transport.name, direction), time.monotonic() - start_s, moved_bytes)

    def _failed(self, direction: str, lengths: Sequence[U64]) -> list[U8]:
        self.failed = True
        self._counts.failed((self.transport.name, direction))
        return [np.full(len(part), Status.FAILED, dtype=np.uint8) for part in lengths]


class Nodes:
    """The cluster map, and a link to each node that was needed. Thread-safe."""

    def __init__(self, cluster: Cluster, connect: Connect, retry_s: float) -> None:
        self._cluster = cluster
        self._connect = connect
        self._retry_s = retry_s
        self.counts = TransferCounts()
        """Of all nodes together."""
        self._refreshing = threading.Lock()
        self._infos: dict[bytes, NodeInfo] = {}
        self._links: dict[bytes, NodeLink] = {}
        self._refreshed_s = float("-inf")
        self._closed = False

    def find(self, segment: bytes, deadline_s: float) -> NodeLink | None:
        """The link to a segment's node; None where nobody knows it, or it can't be reached from here."""
        link = self._links.get(segment)
        if link is not None and not link.failed:
            return link
        if not self._refreshing.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            return link
        try:
            if self._closed:
                return None
            if segment not in self._infos or link is not None:
                self._refresh(deadline_s)
            return self._link(segment)
        finally:
            self._refreshing.release()

    def started_anew(
        self, segment: bytes, link: NodeLink, outcome: Sequence[U8], deadline_s: float
    ) -> NodeLink | None:
        """Where nothing of a call went through, and the node has been started again behind other doors since: those."""
        if not link.failed or not all((part == _FAILED).all() for part in outcome):
            return None
        now = self.find(segment, deadline_s)
        return None if now is link else now

    def cluster_map(self, deadline_s: float) -> ClusterMap:
        """Asks the master. Raises what that raises."""
        return self._cluster.ask(GetClusterMap(), ClusterMap, deadline_s)

    def prepare(self, deadline_s: float) -> int:
        """Connects to every node that the map names; see Transport.prepare. Returns how many are ready.

        The deadline is the map's alone: pinning a large segment takes what it takes.
        """
        with self._refreshing:
            self._refresh(deadline_s)
            found = [self._link(segment) for segment in self._infos]
        links = [link for link in found if link is not None]
        for link in links:
            link.transport.prepare()
        return len(links)

    def page_bytes(self, deadline_s: float) -> int:
        """The largest page of any node: no object can be larger. 0 where no node is known."""
        if not self._infos:
            with self._refreshing:
                self._refresh(deadline_s)
        return max((info.page_bytes for info in self._infos.values()), default=0)

    def open_breakers(self) -> int:
        """Nodes that failed lately. Waits for nobody, whatever is being refreshed."""
        return sum(link.open_breaker for link in list(self._links.values()))

    def close(self) -> None:
        """Closes all links."""
        with self._refreshing:
            self._closed = True
            links, self._links = self._links, {}
        for link in links.values():
            link.transport.close()

    def _refresh(self, deadline_s: float) -> None:
        now_s = time.monotonic()
        if now_s < self._refreshed_s + REFRESH_PAUSE_S:
            return
        self._refreshed_s = now_s
        try:
            cluster = self.cluster_map(deadline_s)
        except MoonpoolError as error:
            log.debug("no cluster map: %s", error)
            return
        self._infos = {entry.info.segment: entry.info for entry in cluster.nodes}
        # A node that was started anew has other doors; one that is gone has none.
        for segment, link in list(self._links.items()):
            if self._infos.get(segment) != link.info:
                del self._links[segment]
                link.transport.close()

    def _link(self, segment: bytes) -> NodeLink | None:
        link = self._links.get(segment)
        info = self._infos.get(segment)
        if link is None and info is not None and not self._closed:
            try:
                link = NodeLink(info, self._connect(info), self._retry_s, self.counts)
            except MoonpoolError as error:
                log.warning("cannot use node %s: %s", info.node, error)
                return None
            self._links[segment] = link
        return link
