"""Memory of the client's own, for transfers that can't go straight to where the caller wants them."""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from moonpool.schemas.errors import DeadlineExceeded
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.node.layout import PAGE_BYTES_MAX
from moonpool.store_client.raw_memory import address_of

BLOCK_BYTES = PAGE_BYTES_MAX
"""No object is larger than a page, so that any object fits a block."""

QUARANTINE_S = 60.0
"""A block that a failed transfer may still write into isn't used again for so long: no engine operation of a
transport that lands late outlives its own timeout by that much."""


@dataclass(eq=False)
class StagingBlock:
    """One block. `tainted` is set by a user whose transfer may still land in it."""

    memory: mmap.mmap
    address: int
    tainted: bool = False


class Staging:
    """Up to `blocks_max` blocks, made when first needed and registered with the copier. Thread-safe."""

    def __init__(self, copier: DeviceCopier, blocks_max: int = 4, quarantine_s: float = QUARANTINE_S) -> None:
        self._copier = copier
        self._blocks_max = blocks_max
        self._quarantine_s = quarantine_s
        self._changed = threading.Condition()
        self._free: list[StagingBlock] = []
        self._tainted: list[tuple[float, StagingBlock]] = []
        self._made: list[StagingBlock] = []

    @contextmanager
    def block(self, deadline_s: float) -> Iterator[StagingBlock]:
        """A block for as long as the `with` lasts. Raises DeadlineExceeded."""
        block = self._take(deadline_s)
        try:
            yield block
        finally:
            with self._changed:
                if block.tainted:
                    self._tainted.append((time.monotonic() + self._quarantine_s, block))
                else:
                    self._free.append(block)
                self._changed.notify()

    def close(self) -> None:
        """Frees all memory. The caller knows that no transport uses it any more; late ones must be closed."""
        with self._changed:
            for block in self._made:
                self._copier.unregister(block.address)
                block.memory.close()
            self._made.clear()
            self._free.clear()
            self._tainted.clear()

    def _take(self, deadline_s: float) -> StagingBlock:
        with self._changed:
            while True:
                now_s = time.monotonic()
                while self._tainted and self._tainted[0][0] <= now_s:
                    block = self._tainted.pop(0)[1]
                    block.tainted = False
                    self._free.append(block)
                if self._free:
                    return self._free.pop()
                if len(self._made) < self._blocks_max:
                    return self._make()
                if now_s >= deadline_s:
                    raise DeadlineExceeded(peer="staging memory", what="a transfer", timeout_s=0.0)
                until_s = min([deadline_s, *(free_s for free_s, _ in self._tainted[:1])])
                self._changed.wait(max(0.001, until_s - now_s))

    def _make(self) -> StagingBlock:
        memory = mmap.mmap(-1, BLOCK_BYTES)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        block = StagingBlock(memory, address_of(np.frombuffer(memory, dtype=np.uint8)))
        self._copier.register(block.address, BLOCK_BYTES)
        self._made.append(block)
        return block
