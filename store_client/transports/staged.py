"""A transport that goes through staging memory: for devices that it can't reach, and for reads that may land late.

The caller's memory is written only by the copier, after the transfer is complete and validated; so it is never
written after `read` has returned, whatever the transport underneath still does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8, U64
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.transports.base import ReadBatch, Transport, WriteBatch
from moonpool.store_client.transports.pieces import batches_of, coalesce, slot_side
from moonpool.store_client.transports.staging import BLOCK_BYTES, Staging

log = logging.getLogger(__name__)

OBJECTS_MAX = 8192


class StagedTransport:
    """The Transport underneath, made safe for any destination."""

    lands_late = False
    door = None  # nothing that it is given is in host memory

    def __init__(self, inner: Transport, copier: DeviceCopier, staging: Staging) -> None:
        self.name = inner.name
        self._inner = inner
        self._copier = copier
        self._staging = staging

    def read(self, batch: ReadBatch, deadline_s: float) -> U8:
        """See Transport."""
        statuses = np.full(len(batch.slots), Status.FAILED, dtype=np.uint8)
        statuses[batch.lengths > BLOCK_BYTES] = Status.TOO_LARGE
        index = np.flatnonzero(batch.lengths <= BLOCK_BYTES)
        for part in batches_of(batch.lengths[index], OBJECTS_MAX, BLOCK_BYTES):
            try:
                statuses[index[part]] = self._read_part(batch, index[part], deadline_s)
            except MoonpoolError as error:
                log.warning("staged read failed: %s", error)
        return statuses

    def write(self, batches: Sequence[WriteBatch], deadline_s: float) -> list[U8]:
        """See Transport."""
        return [self._write_one(batch, deadline_s) for batch in batches]

    def prepare(self) -> None:
        """See Transport."""
        self._inner.prepare()

    def close(self) -> None:
        """See Transport. The staging memory is its owner's."""
        self._inner.close()

    def _read_part(self, batch: ReadBatch, index: NDArray[np.intp], deadline_s: float) -> U8:
        lengths = batch.lengths[index]
        with self._staging.block(deadline_s) as block:
            starts = _starts(block.address, lengths)
            block.tainted = self._inner.lands_late  # until the transfer has said that it is over
            staged = Fragments.grid(starts.reshape(-1, 1), lengths.reshape(-1, 1))
            statuses = self._inner.read(batch.part(index, staged), deadline_s)
            block.tainted = self._inner.lands_late and bool((statuses == Status.FAILED).any())
            good = np.flatnonzero(statuses == Status.OK)
            into = batch.into.take(index[good])
            engine, host, sizes = coalesce(into.addresses, slot_side(into, starts[good]), into.sizes)
            self._copier.to_engine(engine, host, sizes)
        return statuses

    def _write_one(self, batch: WriteBatch, deadline_s: float) -> U8:
        if int(batch.lengths.sum()) > BLOCK_BYTES:
            return np.full(batch.source.count, Status.TOO_LARGE, dtype=np.uint8)
        try:
            with self._staging.block(deadline_s) as block:
                starts = _starts(block.address, batch.lengths)
                source = batch.source
                host, engine, sizes = coalesce(slot_side(source, starts), source.addresses, source.sizes)
                self._copier.from_engine(host, engine, sizes)
                staged = Fragments.grid(starts.reshape(-1, 1), batch.lengths.reshape(-1, 1))
                copy = WriteBatch(batch.item, batch.lengths, staged, batch.visible, batch.direct)
                return self._inner.write([copy], deadline_s)[0]
        except MoonpoolError as error:
            log.warning("staged write failed: %s", error)
            return np.full(batch.source.count, Status.FAILED, dtype=np.uint8)


def _starts(address: int, lengths: U64) -> U64:
    starts: U64 = np.uint64(address) + np.cumsum(lengths, dtype=np.uint64) - lengths
    return starts
