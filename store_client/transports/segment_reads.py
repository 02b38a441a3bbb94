"""Copies out of a mapped segment, and whether what was copied is what was asked for."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from moonpool.schemas.header import keyspace_word
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8
from moonpool.store_client import native
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.mapped import MappedSegment
from moonpool.store_client.transports.pieces import check_fit, coalesce, slot_side
from moonpool.store_client.transports.proof import judge


class SegmentReads:
    """Of one segment into one device's memory. Thread-safe."""

    def __init__(self, segment: MappedSegment, copier: DeviceCopier) -> None:
        self._segment = segment
        self._copier = copier
        self._native = native.HOT and type(copier) is HostCopier

    def read(self, batch: ReadBatch) -> U8:
        """Copies, and only then looks at the headers (I3). A Status an object: OK or MISSING by whether each holds what was asked
        for, CORRUPT where the copied bytes are to be verified and have another checksum. Raises MoonpoolError: a copy failed."""
        if self._native:
            columns = (batch.slots, batch.generations, batch.lengths, batch.hashes)
            word = keyspace_word(batch.keyspace)
            return native.read_slots(
                self._segment.native_layout, *columns, word, batch.rank, batch.into, batch.verify
            )
        starts, inside = self._segment.places(batch.slots, batch.lengths)
        if not inside.all():
            statuses = np.full(len(batch.slots), Status.MISSING, dtype=np.uint8)
            index = np.flatnonzero(inside)
            if len(index):
                statuses[index] = self.read(batch.part(index))
            return statuses
        into = batch.into
        check_fit(into, batch.lengths)
        engine, host, sizes = coalesce(into.addresses, slot_side(into, starts), into.sizes)
        self._copier.to_engine(engine, host, sizes)
        statuses = np.full(len(batch.slots), Status.OK, dtype=np.uint8)
        there = replace(batch, verify=False) if self._copier.device else batch
        judge(statuses, np.arange(len(statuses)), there, self._segment.headers(batch.slots))
        return statuses
