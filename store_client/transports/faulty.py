"""The fake transport: any other one, with loss, delay, a slow line, truncation and late writes, all from one seed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.transports.base import ReadBatch, Transport, WriteBatch
from moonpool.store_client.transports.pieces import coalesce, slot_side, trim


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Shares are of objects (of batches in `write`), 0 to 1 together."""

    seed: int = 0
    loss: float = 0.0
    """Fails, and nothing arrives."""
    truncation: float = 0.0
    """Fails after the first half of its bytes has arrived."""
    late: float = 0.0
    """Fails, and arrives nevertheless `late_s` after the call has returned."""
    late_s: float = 0.1
    delay_s: float = 0.0
    bytes_per_s: float = float("inf")


class FaultyTransport:
    """A Transport for tests of those who use one."""

    door = None
    """Faults are for all that is written."""

    def __init__(self, inner: Transport, faults: Faults) -> None:
        self.name = f"faulty {inner.name}"
        self.lands_late = faults.late > 0
        self._inner = inner
        self._faults = faults
        self._rng = np.random.default_rng(faults.seed)
        self._lock = threading.Lock()
        self._late: list[threading.Timer] = []

    def read(self, batch: ReadBatch, deadline_s: float) -> U8:
        """See Transport."""
        faults = self._faults
        draws = self._draw(len(batch.slots))
        statuses = np.full(len(draws), Status.FAILED, dtype=np.uint8)
        if not self._travel(int(batch.lengths.sum()), deadline_s):
            return statuses
        cut = faults.loss + faults.truncation
        self._truncate(batch.part(np.flatnonzero((draws >= faults.loss) & (draws < cut))), deadline_s)
        self._postpone(batch.part(np.flatnonzero((draws >= cut) & (draws < cut + faults.late))))
        good = np.flatnonzero(draws >= cut + faults.late)
        statuses[good] = self._inner.read(batch.part(good), deadline_s)
        return statuses

    def write(self, batches: Sequence[WriteBatch], deadline_s: float) -> list[U8]:
        """See Transport."""
        statuses = [np.full(batch.source.count, Status.FAILED, dtype=np.uint8) for batch in batches]
        size_bytes = sum(int(batch.lengths.sum()) for batch in batches)
        if not self._travel(size_bytes, deadline_s):
            return statuses
        good = np.flatnonzero(self._draw(len(batches)) >= self._faults.loss).tolist()
        for i, outcome in zip(good, self._inner.write([batches[i] for i in good], deadline_s), strict=True):
            statuses[i] = outcome
        return statuses

    def prepare(self) -> None:
        """See Transport."""
        self._inner.prepare()

    def close(self) -> None:
        """See Transport. Waits for what is still to arrive."""
        for timer in self._late:
            timer.join()
        self._inner.close()

    def _draw(self, count: int) -> NDArray[np.float64]:
        with self._lock:
            return self._rng.random(count)

    def _travel(self, size_bytes: int, deadline_s: float) -> bool:
        """Takes the time that the line takes. False where that is more than there is."""
        takes_s = self._faults.delay_s + size_bytes / self._faults.bytes_per_s
        left_s = deadline_s - time.monotonic()
        time.sleep(max(0.0, min(takes_s, left_s)))
        return takes_s < left_s

    def _truncate(self, batch: ReadBatch, deadline_s: float) -> None:
        whole = np.zeros(int(batch.lengths.sum()), dtype=np.uint8)
        starts = np.uint64(address_of(whole)) + np.cumsum(batch.lengths, dtype=np.uint64) - batch.lengths
        staged = Fragments.grid(starts.reshape(-1, 1), batch.lengths.reshape(-1, 1))
        self._inner.read(batch.part(np.arange(len(batch.slots)), staged), deadline_s)
        half = trim(batch.into, batch.lengths // np.uint64(2))
        HostCopier().to_engine(*coalesce(half.addresses, slot_side(half, starts), half.sizes))

    def _postpone(self, batch: ReadBatch) -> None:
        if len(batch.slots):
            deadline_s = time.monotonic() + self._faults.late_s + 10.0
            timer = threading.Timer(self._faults.late_s, self._inner.read, (batch, deadline_s))
            self._late.append(timer)
            timer.start()
