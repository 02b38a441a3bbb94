"""Same host: copies straight from and to the mapped segment. A read asks nobody; a write asks the node twice, or once where it has
granted slots ahead."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Generator, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from moonpool.schemas.errors import (
    MoonpoolError,
    TransferFailed,
)
from moonpool.schemas.messages import (
    Begin,
    Commit,
    Committed,
    Granted,
    Hello,
    Located,
    Message,
    NodeInfo,
    PutAhead,
    Revoke,
    Status,
    decode_from_node,
)
from moonpool.schemas.packed import U8, U32, U64, u32s
from moonpool.store_client import native
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.gate import Gate
from moonpool.store_client.host import host_id
from moonpool.store_client.rpc.connection_pool import ConnectionPool
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.transports.ahead import slot_bytes_of
from moonpool.store_client.transports.base import FewObjects, ReadBatch, SpecOf, WriteBatch
from moonpool.store_client.transports.few_reads import read_few
from moonpool.store_client.transports.groups import CHUNK_OBJECTS, concatenate, groups_of, part_of
from moonpool.store_client.transports.mapped import MappedSegment
from moonpool.store_client.transports.node_calls import NodeCalls
from moonpool.store_client.transports.pieces import batches_of, check_fit, coalesce, slot_side, total_bytes
from moonpool.store_client.transports.segment_reads import SegmentReads
from moonpool.store_client.transports.session import Session
from moonpool.store_client.transports.small_door import SmallDoor, is_small
from moonpool.store_client.transports.turns import Steps, take_turns
from moonpool.store_client.workers import Workers

log = logging.getLogger(__name__)

CHUNK_BYTES = 64 << 20
"""Deadlines are looked at in between."""

HASHED_CHUNK_BYTES = 8 << 20
"""Copied, then hashed while still in the cache: in Python. C hashes while it copies."""

DEVICE_CHUNK_BYTES = 128 << 20
"""For a device nothing is hashed, and each wait for it costs as much as some MiB of copies."""

GROUP_BYTES = 128 << 20
"""Granted, copied and committed together: bounds what one writer holds uncommitted."""

GROUP_OBJECTS = 512
"""The same where the processor copies: of a thousand small objects some are copied while others are begun and committed,
which takes as long."""

GROUPS_AT_ONCE = 3
OVERLAPPING_MAX = 2
"""Threads whose groups overlap, each on connections of their own: all of them together fit the pool."""

DEVICE_GROUP_BYTES = 512 << 20
"""A device copies 128 MiB in 2.5 ms, about what the calls before and after the copies of a group take."""

DEVICE_HELPERS = 1
"""Threads more for one call: what the processor does before and after the copies of one part is done while those of another one
are under way. On an H200 gets go at 50 GB/s so, puts at 44 (43 and 34 without; one large copy: 55)."""

_OK, _FAILED = np.uint8(Status.OK), np.uint8(Status.FAILED)


def same_host(info: NodeInfo) -> bool:
    """Whether this process sees the folder that the node's segment lies in."""
    return bool(info.unix_path and info.segment_path) and info.host == host_id(
        os.path.dirname(info.segment_path)
    )


class ShmTransport:
    """The Transport of a node on this host."""

    name = "shm"
    lands_late = False

    def __init__(
        self,
        info: NodeInfo,
        hello: Hello,
        run_dir: str,
        copier: DeviceCopier,
        spec_of: SpecOf,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """Maps the segment. Raises TransferFailed where that can't be done: use tcp then."""
        self._copier = copier
        self._spec_of = spec_of
        self._segment = MappedSegment(info.segment_path, info.segment)
        self._node = ConnectionPool(
            f"unix:{info.unix_path}", hello, decode_from_node, credentials=credentials
        )
        self._session = Session(self._node, run_dir)
        self._calls = NodeCalls(self._node, self._session, spec_of)
        self._gate = Gate(f"the shm transport of {info.node}")
        self._host = type(copier) is HostCopier
        self.door = SmallDoor(self._node, spec_of) if self._host else None
        self._native = native.HOT and self._host
        self._reads = SegmentReads(self._segment, copier)
        self._helpers = DEVICE_HELPERS if copier.device else 0
        self._workers = Workers(DEVICE_HELPERS, "moonpool-device")
        self._registering = threading.Lock()
        self._overlapping = threading.BoundedSemaphore(OVERLAPPING_MAX)
        self._registered = False

    def read(self, batch: ReadBatch, deadline_s: float) -> U8:
        """See Transport."""
        with self._gate:
            if not self._registered:
                self._register_mapping()
            chunk_bytes = HASHED_CHUNK_BYTES if batch.verify and not self._native else CHUNK_BYTES
            if not self._host and self._copier.device:
                chunk_bytes = DEVICE_CHUNK_BYTES
            if len(batch.lengths) <= CHUNK_OBJECTS and total_bytes(batch.lengths) <= chunk_bytes:
                return self._read_in_time(batch, deadline_s)  # the usual case
            parts = list(batches_of(batch.lengths, CHUNK_OBJECTS, chunk_bytes))
            outcomes = [np.zeros(0, dtype=np.uint8)] * len(parts)
            left = iter(enumerate(parts))

            def read_on() -> None:
                for index, part in left:
                    outcomes[index] = self._read_in_time(part_of(batch, part), deadline_s)

            self._workers.together(read_on, self._helpers)
        return np.concatenate([np.zeros(0, dtype=np.uint8), *outcomes])

    def read_few(self, objects: FewObjects, located: Located, deadline_s: float) -> bool:
        """Whether all of a few objects of this segment have come; where not, `read` has the outcome of each."""
        with self._gate:
            in_time = time.monotonic() <= deadline_s
            return self._native and in_time and read_few(self._segment, objects, located)

    def write(self, batches: Sequence[WriteBatch], deadline_s: float) -> list[U8]:
        """See Transport."""
        statuses = [np.full(batch.source.count, Status.FAILED, dtype=np.uint8) for batch in batches]
        with self._gate:
            self._register_mapping()
            group_bytes = DEVICE_GROUP_BYTES if self._copier.device else GROUP_BYTES
            limits = (group_bytes, GROUP_OBJECTS if self._host else CHUNK_OBJECTS)
            groups = list(groups_of(batches, *limits))
            left = iter(groups)
            # Who waits for a second connection while it holds one must be sure to get it.
            overlapped = len(groups) > 1 and self._host and self._overlapping.acquire(blocking=False)

            def write_on() -> None:
                take_turns(
                    (self._write_some(batches, group, statuses, deadline_s, overlapped) for group in left),
                    GROUPS_AT_ONCE if overlapped else 1,
                )

            try:
                self._workers.together(write_on, min(self._helpers, len(groups) - 1))
            finally:
                if overlapped:
                    self._overlapping.release()
        return statuses

    def _write_some(
        self,
        batches: Sequence[WriteBatch],
        group: Sequence[int],
        statuses: list[U8],
        deadline_s: float,
        overlapped: bool,
    ) -> Steps:
        """The batches of one group. Stops only where `overlapped`."""
        if self._gate.closed:
            return False
        try:
            outcome = yield from self._write_group([batches[i] for i in group], deadline_s, overlapped)
        except MoonpoolError as error:
            log.warning("put into %s failed: %s", self._segment.path, error)
            return False
        end = 0
        for i in group:
            first, end = end, end + batches[i].source.count
            statuses[i] = outcome[first:end]
        return True

    def prepare(self) -> None:
        """See Transport: pins the mapping for a device; without one, fills the page tables of this process."""
        with self._gate:
            if self._copier.device:
                self._register_mapping()
            else:
                self._segment.populate(lambda: self._gate.closed)

    def close(self) -> None:
        """See Transport."""
        if self._gate.forked or not self._gate.close():
            return
        self._node.close()
        self._gate.wait_empty()
        self._workers.close()
        self._session.close()
        if self._registered:
            self._copier.unregister(self._segment.data_address)
        self._segment.close()

    def _register_mapping(self) -> None:
        """Once, and only when the first copy needs it: pinning memory for a device takes seconds."""
        if self._registered:
            return
        with self._registering:
            if not self._registered:
                self._copier.register(self._segment.data_address, self._segment.data_bytes)
                self._registered = True

    # ------------------------------------------------------------ reading

    def _read_in_time(self, batch: ReadBatch, deadline_s: float) -> U8:
        if time.monotonic() <= deadline_s and not self._gate.closed:
            try:
                return self._reads.read(batch)
            except MoonpoolError as error:
                log.warning("copy out of %s failed: %s", self._segment.path, error)
        return np.full(len(batch.slots), _FAILED)

    # ------------------------------------------------------------ writing

    def _write_group(
        self, group: Sequence[WriteBatch], deadline_s: float, overlapped: bool
    ) -> Generator[None, None, U8]:
        """One begin, the copies, one commit; or less."""
        if len(group) == 1 and self.door is not None and group[0].item.lengths and is_small(group[0]):
            return self.door.write(group[0], deadline_s)  # one exchange with the node less
        self._session.open(deadline_s)
        slot_bytes = slot_bytes_of(group, self._spec_of)
        if len(group) == 1 and not overlapped:
            outcome = self._put_ahead(group[0], slot_bytes, deadline_s)
            if outcome is not None:
                return np.frombuffer(outcome, dtype=np.uint8)
        return (yield from self._begin_and_commit(group, slot_bytes, deadline_s, overlapped))

    def _begin_and_commit(
        self, group: Sequence[WriteBatch], slot_bytes: int, deadline_s: float, overlapped: bool
    ) -> Generator[None, None, U8]:
        items = [batch.item for batch in group]
        direct = any(batch.direct for batch in group)
        with self._session.put() as put_id:
            begin = Begin(self._session.id, put_id, items, direct=direct)
            granted = yield from self._calls.exchange(begin, deadline_s, overlapped)
            if not isinstance(granted, Granted) or granted.put_id != put_id:
                raise TransferFailed(peer=self._node.address, reason=f"{type(granted).__name__} to Begin")
            statuses = np.frombuffer(granted.statuses, dtype=np.uint8).copy()
            count = sum(batch.source.count for batch in group)
            if len(statuses) != count or len(granted.slots) != 4 * count:
                # A node that adopted this very put knows its granted blocks only: they would get each other's bytes.
                raise TransferFailed(peer=self._node.address, reason="Granted of another size")
            go = np.flatnonzero(statuses == _OK)
            if not len(go):
                return statuses
            try:
                self._fill(group, granted, go)
            except BaseException:
                with contextlib.suppress(MoonpoolError):
                    self._node.call(Revoke(self._session.id, [put_id]), deadline_s)
                raise
            visible = any(batch.visible for batch in group)
            commit = Commit(self._session.id, [put_id], visible=visible, direct=direct)
            outcome = yield from self._commit(commit, len(statuses), slot_bytes, deadline_s, overlapped)
            statuses[go] = outcome[go]
        return statuses

    def _put_ahead(self, batch: WriteBatch, slot_bytes: int, deadline_s: float) -> bytes | None:
        """The copies, then one call that names and commits them. None where there are no slots for them, or the node has
        forgotten those: to be begun as any other."""
        count = batch.source.count
        taken = self._session.take_ahead(slot_bytes, count) if slot_bytes else None
        if taken is None:
            return None
        (grant, ahead), answer = taken, None
        try:
            if not self._copy_in(grant.slots[:count], batch.lengths, batch.source):
                raise TransferFailed(peer=self._node.address, reason="a granted slot lies outside its page")
            put = PutAhead(grant.session, grant.put_id, batch.item, batch.visible, batch.direct, ahead)
            answer = self._committed(self._calls.call(put, deadline_s), count)
        finally:
            granted = None if answer is None else answer.ahead
            self._session.end_ahead(taken, granted, self._size_of(granted), sure=answer is not None)
        statuses = answer.statuses[0]
        return None if statuses.count(Status.GONE) == count else statuses

    def _commit(
        self, commit: Commit, count: int, slot_bytes: int, deadline_s: float, overlapped: bool
    ) -> Generator[None, None, U8]:
        """A Status an object of one put. `slot_bytes`: where the next put is likely to want as many slots of this size."""
        ahead, granted = self._session.ask_ahead() if slot_bytes else 0, None
        try:
            answer = yield from self._calls.exchange(replace(commit, ahead=ahead), deadline_s, overlapped)
            committed = self._committed(answer, count)
            granted = committed.ahead
        finally:
            if ahead:
                self._session.keep_ahead(commit.session, ahead, granted, self._size_of(granted))
        return np.frombuffer(committed.statuses[0], dtype=np.uint8)

    def _committed(self, answer: Message, count: int) -> Committed:
        if not isinstance(answer, Committed) or [len(part) for part in answer.statuses] != [count]:
            reason = f"{type(answer).__name__} to a commit of {count} blocks"
            raise TransferFailed(peer=self._node.address, reason=reason)
        return answer

    def _size_of(self, granted: Granted | None) -> int:
        return self._segment.slot_bytes(granted.slots) if granted is not None else 0

    def _fill(self, group: Sequence[WriteBatch], granted: Granted, go: NDArray[np.intp]) -> None:
        """Copies every granted object into its slot."""
        slots, source = u32s(granted.slots), concatenate([batch.source for batch in group])
        lengths = group[0].lengths if len(group) == 1 else np.concatenate([batch.lengths for batch in group])
        if len(go) < source.count:
            slots, lengths, source = slots[go], lengths[go], source.take(go)
        if not self._copy_in(slots, lengths, source):  # never write where the node can't have meant it
            raise TransferFailed(peer=self._node.address, reason="a granted slot lies outside its page")

    def _copy_in(self, slots: U32, lengths: U64, source: Fragments) -> bool:
        if self._native:
            return native.fill_slots(self._segment.native_layout, slots, lengths, source)
        starts, inside = self._segment.places(slots, lengths)
        if not inside.all():
            return False
        check_fit(source, lengths)
        host, engine, sizes = coalesce(slot_side(source, starts), source.addresses, source.sizes)
        self._copier.from_engine(host, engine, sizes)
        return True
