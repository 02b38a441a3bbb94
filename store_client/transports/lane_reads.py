"""Batches that are read over lanes of one node: in shares over several at once, or whole, by one exchange on one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.framing import encode_frame
from moonpool.schemas.header import HEADER_BYTES, HEADER_DTYPE, Headers
from moonpool.schemas.messages import LaneData, LaneRead, Status, encode
from moonpool.schemas.packed import U8, U32, U64, pack_u32, pack_u64
from moonpool.store_client import native_lanes
from moonpool.store_client.checksums import mismatches
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.tracing import traceparent
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.lane import Lane, check_outcome
from moonpool.store_client.transports.lane_pool import Borrowed, Share
from moonpool.store_client.transports.proof import judge, sent_of

_OK, _CORRUPT = np.uint8(Status.OK), np.uint8(Status.CORRUPT)


class LaneReads:
    """What has come of a batch so far. Shares may be read by several threads at once."""

    def __init__(self, batch: ReadBatch) -> None:
        self.batch = batch
        self.statuses: U8 = np.full(len(batch.slots), Status.FAILED, dtype=np.uint8)
        self._headers: U8 = np.zeros(HEADER_BYTES * len(batch.slots), dtype=np.uint8)
        self._done: list[Share] = []

    def alone(self, share: Share, deadline_s: float, lane: Lane) -> None:
        """See Shared."""
        self._take(share, lane.read(self._request(share), self._into(share), deadline_s))

    def together(
        self, lanes: Sequence[Borrowed], shares: Sequence[Share], deadline_s: float
    ) -> list[Exception | None]:
        """See Shared."""
        into = self.batch.into
        columns = (into.offsets, into.addresses, into.sizes, self.statuses, self._headers)
        calls = []
        for (lane, idle), (first, end) in zip(lanes, shares, strict=True):
            frame = lane.frame(self._request((first, end)))
            calls.append((lane.fileno(), idle, frame, _head(end - first), first, end - first))
        outcomes = native_lanes.exchange_lanes(columns, calls, deadline_s)
        errors: list[Exception | None] = []
        for (lane, _), share, (code, lane.started, taken) in zip(lanes, shares, outcomes, strict=True):
            errors.append(None)
            try:
                if code == native_lanes.LANE_OTHER:
                    self._take(share, lane.finish_read(taken, self._into(share), deadline_s))
                else:
                    check_outcome(code)
                    self._done.append(share)
            except (OSError, MoonpoolError) as error:
                errors[-1] = error
        return errors

    def _request(self, share: Share) -> LaneRead:
        batch, here = self.batch, slice(*share)
        return _request(batch.slots[here], batch.generations[here], batch.lengths[here])

    def _into(self, share: Share) -> Fragments:
        into = self.batch.into
        return into if share == (0, into.count) else into.take(np.arange(*share))

    def _take(self, share: Share, data: tuple[U8, Headers]) -> None:
        statuses, headers = data
        start = HEADER_BYTES * share[0]
        self._headers[start : start + headers.nbytes] = headers.view(np.uint8)
        self.statuses[slice(*share)] = statuses
        self._done.append(share)

    def judge(self) -> U8:
        """A Status an object: only those are OK whose header, which came behind the payload, says all that was asked
        for."""
        sent, there = sent_of(self.batch, self.statuses)
        headers: Headers = self._headers.view(HEADER_DTYPE)
        if len(sent) < len(self.statuses):
            parts = [
                headers[first : first + int(np.count_nonzero(self.statuses[first:end] == _OK))]
                for first, end in sorted(self._done)
            ]
            headers = np.concatenate(parts) if parts else headers[:0]
        judge(self.statuses, sent, there, headers)
        return self.statuses


class WholeRead:
    """A batch that one exchange reads, by one call that looks at the headers too. Only where native.HOT."""

    def __init__(self, batch: ReadBatch) -> None:
        self._batch = batch
        self.statuses: U8 | None = None
        """One an object: see LaneReads.judge. None where nothing came."""

    def alone(self, share: Share, deadline_s: float, lane: Lane) -> None:
        """See Shared."""
        self._read(lane, False, deadline_s)

    def together(
        self, lanes: Sequence[Borrowed], shares: Sequence[Share], deadline_s: float
    ) -> list[Exception | None]:
        """See Shared: one lane, and one share, which is all."""
        ((lane, idle),) = lanes
        try:
            self._read(lane, idle, deadline_s)
        except (OSError, MoonpoolError) as error:
            return [error]
        return [None]

    def _read(self, lane: Lane, idle: bool, deadline_s: float) -> None:
        """Raises OSError, MoonpoolError."""
        batch, into = self._batch, self._batch.into
        frame = b""
        if lane.traces and traceparent.get():
            frame = lane.frame(_request(batch.slots, batch.generations, batch.lengths))
        columns = (
            batch.slots,
            batch.generations,
            batch.lengths,
            batch.hashes,
            into.offsets,
            into.addresses,
            into.sizes,
        )
        code, lane.started, taken, statuses, told = native_lanes.read_lane(
            lane.fileno(), idle, frame, columns, batch.keyspace, batch.rank, deadline_s
        )
        if code == native_lanes.LANE_OTHER:
            statuses, headers = lane.finish_read(taken, into, deadline_s)
            judge(statuses, *sent_of(batch, statuses), headers)
        elif code:
            check_outcome(code)
        elif told is not None and batch.verify:
            statuses[mismatches(into, told)] = _CORRUPT
        self.statuses = statuses


def _request(slots: U32, generations: U64, lengths: U64) -> LaneRead:
    return LaneRead(pack_u32(slots), pack_u64(generations), pack_u64(lengths))


@lru_cache(256)
def _head(count: int) -> bytes:
    """The frame of an answer about so many objects, without their statuses."""
    frame = encode_frame(1, encode(LaneData(bytes(count))))
    return frame[: len(frame) - count]
