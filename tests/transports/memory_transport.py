"""A transport whose slots are numpy arrays in this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from moonpool.schemas.messages import BeginItem, Status
from moonpool.schemas.packed import U8
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.transports.base import ReadBatch, WriteBatch
from moonpool.store_client.transports.pieces import coalesce, slot_side


class MemoryTransport:
    """Slot i holds `slots[i]`; a read of a slot that isn't there is MISSING. Writes are appended."""

    name = "memory"

    door = None

    def __init__(self, slots: Sequence[U8], lands_late: bool = False) -> None:
        self.slots = list(slots)
        self.lands_late = lands_late
        self.reads = 0
        self.closed = threading.Event()

    def read(self, batch: ReadBatch, deadline_s: float) -> U8:
        self.reads += 1
        statuses = np.full(len(batch.slots), Status.MISSING, dtype=np.uint8)
        there = np.flatnonzero(batch.slots < len(self.slots))
        into = batch.into.take(there)
        starts = np.array([address_of(self.slots[slot]) for slot in batch.slots[there]], dtype=np.uint64)
        HostCopier().to_engine(*coalesce(into.addresses, slot_side(into, starts), into.sizes))
        statuses[there] = Status.OK
        return statuses

    def write(self, batches: Sequence[WriteBatch], deadline_s: float) -> list[U8]:
        for batch in batches:
            source = batch.source
            for i in range(source.count):
                whole = np.zeros(int(batch.lengths[i]), dtype=np.uint8)
                one = source.take([i])
                to = slot_side(one, np.array([address_of(whole)], dtype=np.uint64))
                HostCopier().from_engine(*coalesce(to, one.addresses, one.sizes))
                self.slots.append(whole)
        return [np.full(batch.source.count, Status.OK, dtype=np.uint8) for batch in batches]

    def prepare(self) -> None:
        pass

    def close(self) -> None:
        self.closed.set()


def scattered(memory: U8, count: int, pieces: int, piece_bytes: int) -> Fragments:
    """`count` objects of `pieces` pieces each in `memory`, interleaved: all first pieces, then all second ones."""
    base = np.uint64(address_of(memory))
    index = np.arange(count * pieces, dtype=np.uint64).reshape(pieces, count).T
    return Fragments.grid(base + index * np.uint64(piece_bytes), np.full((1, pieces), piece_bytes, np.uint64))


def batch_of(slots: Sequence[int], into: Fragments) -> ReadBatch:
    """A read of these slots."""
    count = len(slots)
    return ReadBatch(
        keyspace=bytes(16),
        rank=0,
        hashes=np.zeros(count, dtype="S32"),
        slots=np.array(slots, dtype=np.uint32),
        generations=np.ones(count, dtype=np.uint64),
        lengths=into.lengths(),
        into=into,
    )


def write_of(source: Fragments) -> WriteBatch:
    """A write of these objects."""
    item = BeginItem(bytes(16), 0, 0, b"", bytes(32 * source.count))
    return WriteBatch(item, source.lengths(), source)
