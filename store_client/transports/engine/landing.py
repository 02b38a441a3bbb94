"""Memory of our own that transfers land in. After a failed one its block is given up for good.

The engine's wait ends after some seconds, its transfer doesn't: over tcp, a peer that is stopped in the middle and goes
on minutes later still sends the rest, and it lands where it was to land (measured). No pause is long enough for that.
So the block's addresses are never used again in this process, while its memory is given back at once.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from moonpool.schemas.errors import DeadlineExceeded
from moonpool.schemas.packed import U8
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.node.layout import PAGE_BYTES_MAX
from moonpool.store_client.raw_memory import MAP_NORESERVE, address_of, bytes_at, map_over
from moonpool.store_client.transports.engine.engine import Engine

PAYLOAD_BYTES = PAGE_BYTES_MAX
"""No object is larger than a page, so that any object fits a block."""

EXTRA_BYTES = 2 << 20
"""Behind the payload, for the headers of its objects, the head of the segment, a guard."""

BLOCK_BYTES = PAYLOAD_BYTES + EXTRA_BYTES

_PROT_NONE = 0

_given_up: list[mmap.mmap] = []
"""Never closed: that would let other memory have their addresses."""


@dataclass(eq=False)
class LandingBlock:
    """`lost` is to be set from before a transfer into it begins until it is known to have gone through."""

    memory: mmap.mmap
    address: int
    lost: bool = False

    @property
    def extra(self) -> int:
        """Address of the part behind the payload."""
        return self.address + PAYLOAD_BYTES

    def view(self, address: int, size_bytes: int) -> U8:
        """Bytes of the block, not copied. Not to be kept."""
        assert self.address <= address and address + size_bytes <= self.address + BLOCK_BYTES
        return bytes_at(address, size_bytes)


class Landing:
    """Up to `blocks_max` blocks, made when first needed, registered with the engine and the device. Thread-safe."""

    def __init__(self, engine: Engine, copier: DeviceCopier, blocks_max: int) -> None:
        self._engine = engine
        self._copier = copier
        self._blocks_max = blocks_max
        self._changed = threading.Condition()
        self._free: list[LandingBlock] = []
        self._made = 0
        self.given_up = 0
        """Blocks that failed transfers have cost so far: addresses, no memory."""

    @contextmanager
    def block(self, deadline_s: float) -> Iterator[LandingBlock]:
        """A block for as long as the `with` lasts. Raises DeadlineExceeded, TransferFailed (no memory to register)."""
        block = self._take(deadline_s)
        try:
            yield block
        finally:
            if block.lost:
                self._give_up(block)
            with self._changed:
                if block.lost:
                    self._made -= 1
                    self.given_up += 1
                else:
                    self._free.append(block)
                self._changed.notify()

    def close(self) -> None:
        """Frees all memory. The caller knows that no block is taken."""
        with self._changed:
            free, self._free = self._free, []
            self._made = 0
        for block in free:
            self._unregister(block)
            block.memory.close()

    def _take(self, deadline_s: float) -> LandingBlock:
        start_s = time.monotonic()
        with self._changed:
            while True:
                if self._free:
                    return self._free.pop()
                if self._made < self._blocks_max:
                    self._made += 1
                    break
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    waited_s = time.monotonic() - start_s
                    raise DeadlineExceeded(peer="landing memory", what="a transfer", timeout_s=waited_s)
        try:
            return self._make()
        except BaseException:
            with self._changed:
                self._made -= 1
                self._changed.notify()
            raise

    def _make(self) -> LandingBlock:
        memory = mmap.mmap(-1, BLOCK_BYTES)
        block = LandingBlock(memory, address_of(np.frombuffer(memory, dtype=np.uint8)))
        self._engine.register(block.address, BLOCK_BYTES)
        self._copier.register(block.address, BLOCK_BYTES)
        return block

    def _give_up(self, block: LandingBlock) -> None:
        """Frees the memory and keeps the addresses, as a hole: what still comes is refused by the kernel there (EFAULT),
        or by the device, which has lost its registration."""
        self._unregister(block)
        _given_up.append(block.memory)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        # Failing, it leaves the memory: safe, but held.
        map_over(block.address, BLOCK_BYTES, _PROT_NONE, flags)

    def _unregister(self, block: LandingBlock) -> None:
        self._copier.unregister(block.address)
        self._engine.unregister(block.address)
