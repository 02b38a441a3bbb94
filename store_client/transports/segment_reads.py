"""Copies out of a mapped segment, and whether what was copied is what was asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.header import Headers, holds, keyspace_word
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8, U64
from moonpool.store_client import native
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.mapped import MappedSegment
from moonpool.store_client.transports.pieces import check_fit, coalesce, slot_side

_READ = np.array([Status.MISSING, Status.OK], dtype=np.uint8)
"""By whether the header holds what was asked for."""


class SegmentReads:
    """Of one segment into one device's memory. Thread-safe."""

    def __init__(self, segment: MappedSegment, copier: DeviceCopier) -> None:
        self._segment = segment
        self._copier = copier
        self._native = native.HOT and type(copier) is HostCopier

    def read(self, batch: ReadBatch) -> U8:
        """A Status an object. Raises MoonpoolError: a copy failed."""
        statuses, starts, checksums = self._copy_out(batch)
        if starts is not None and checksums is not None:
            self._verify(batch, starts, checksums, statuses)
        return statuses

    def _copy_out(self, batch: ReadBatch) -> tuple[U8, U64 | None, U64 | None]:
        """Copies, and only then looks at the headers (I3): OK or MISSING by whether each holds what was asked for. Where
        bytes are to be verified, also where each object lies and the checksum that it should have; 0: none is known."""
        if self._native:
            layout, keyspace = self._segment.native_layout, keyspace_word(batch.keyspace)
            columns = (batch.slots, batch.generations, batch.lengths, batch.hashes)
            return native.read_slots(layout, *columns, keyspace, batch.rank, batch.into, batch.verify)
        count = len(batch.slots)
        starts, inside = self._segment.places(batch.slots, batch.lengths)
        if not inside.all():
            statuses, checksums = (
                np.full(count, Status.MISSING, dtype=np.uint8),
                np.zeros(count, dtype=np.uint64),
            )
            index = np.flatnonzero(inside)
            if len(index):
                statuses[index], _, known = self._copy_out(batch.part(index))
                checksums[index] = 0 if known is None else known
            return statuses, starts, checksums
        into = batch.into
        check_fit(into, batch.lengths)
        engine, host, sizes = coalesce(into.addresses, slot_side(into, starts), into.sizes)
        self._copier.to_engine(engine, host, sizes)
        headers = self._segment.headers(batch.slots)
        right = self._holds(batch, headers)
        statuses = _READ[right.astype(np.uint8)]
        if not batch.verify or self._copier.device:
            return statuses, None, None
        return statuses, starts, np.where(right, headers["checksum"], np.uint64(0))

    def _holds(self, batch: ReadBatch, headers: Headers) -> NDArray[np.bool_]:
        return holds(
            headers, batch.generations, keyspace_word(batch.keyspace), batch.rank, batch.hashes, batch.lengths
        )

    def _verify(self, batch: ReadBatch, starts: U64, checksums: U64, statuses: U8) -> None:
        """Hashes slots rather than copies: one call an object, and a slot that still holds its generation
        afterwards held the same bytes when they were copied."""
        rows = zip(starts.tolist(), batch.lengths.tolist(), checksums.tolist(), strict=True)
        checksum = self._segment.checksum
        wrong = [
            i for i, (start, length, told) in enumerate(rows) if told and checksum(start, length) != told
        ]
        if wrong:
            part = batch.part(np.array(wrong))
            still = self._holds(part, self._segment.headers(part.slots))
            statuses[wrong] = np.where(still, np.uint8(Status.CORRUPT), np.uint8(Status.MISSING))
