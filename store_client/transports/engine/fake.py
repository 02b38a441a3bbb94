"""The fake engine: "peers" are ranges of this process, and it fails when it is told to."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np

from moonpool.schemas.errors import TransferFailed
from moonpool.schemas.packed import U64
from moonpool.store_client.transports.engine.address import EngineAddress
from moonpool.store_client.transports.engine.engine import Outcome


class FakeEngine:
    """See Engine. As over RDMA, both sides of a read must lie in registered memory."""

    def __init__(self) -> None:
        self.address = EngineAddress("fake", "127.0.0.1:1")
        self.ranges: dict[int, int] = {}
        self.reads: list[int] = []
        """Pieces of each read so far."""
        self.before_read: Callable[[int], None] = lambda number: None
        """Called with the number of a read (0 is the first) before it moves a byte."""
        self.failing = False
        self.unreachable = False
        self.delay_s = 0.0
        self._lock = threading.Lock()

    def read(self, session: str, into: U64, source: U64, sizes: U64) -> Outcome:
        """See Engine."""
        with self._lock:
            number = len(self.reads)
            self.reads.append(len(sizes))
        self.before_read(number)
        time.sleep(self.delay_s)
        if self.unreachable:
            return Outcome.NOT_BEGUN
        if self.failing or not (self._registered(into, sizes) and self._registered(source, sizes)):
            return Outcome.UNCERTAIN
        for to, origin, size in zip(into.tolist(), source.tolist(), sizes.tolist(), strict=True):
            ctypes.memmove(to, origin, size)
        return Outcome.LANDED

    def register(self, address: int, size_bytes: int) -> None:
        """See Engine."""
        if address in self.ranges:
            raise TransferFailed(peer="the fake engine", reason=f"{address:#x} is registered already")
        self.ranges[address] = size_bytes

    def unregister(self, address: int) -> None:
        """See Engine. Raises KeyError where nothing was registered there."""
        del self.ranges[address]

    def _registered(self, addresses: U64, sizes: U64) -> bool:
        starts = np.array(list(self.ranges), dtype=np.uint64)
        ends = starts + np.array(list(self.ranges.values()), dtype=np.uint64)
        inside = (addresses[:, None] >= starts) & (addresses[:, None] + sizes[:, None] <= ends)
        return bool(inside.any(axis=1).all())
