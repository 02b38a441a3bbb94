"""Memory that all subjects of a run share: bytes to put, and room to get them back into.

Only one subject works at a time, so sharing costs nothing, and every subject moves the same bytes from and to the same
places. An object's fragments lie as an engine's layers do: one stretch a layer, the object a row of each, rows in
random order; so neither fragments nor objects are neighbours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moonpool.store_client.huge_pages import FileMapping

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch of equal objects. `place` moves it through the arena, so that it doesn't find its bytes in a cache;
    `order` is the seed of its rows."""

    count: int
    size: int
    fragments: int = 1
    place: int = 0
    order: int = 0

    @property
    def total_bytes(self) -> int:
        """Of all objects."""
        return self.count * self.size

    def row(self, length: int) -> list[Shape]:
        """So many batches like this one, each in a place of its own; the next place begins behind them."""
        first = self.place * length
        return [replace(self, place=first + index) for index in range(length)]


class Arena:
    """Shared memory: `half_bytes` of random bytes, and as much room for what comes back. `path`: see `make`."""

    def __init__(self, path: Path, half_bytes: int) -> None:
        self.path, self.half_bytes = path, half_bytes
        with path.open("r+b") as file:
            self._mapping = FileMapping(file.fileno(), 2 * half_bytes)
        self.bytes: NDArray[np.uint8] = self._mapping.bytes
        # An engine has its memory in its page tables long before. Some stores see to that when memory is registered,
        # and would look better than others only for that.
        self._mapping.populate(0, 2 * half_bytes)
        self.address: int = self._mapping.address
        self.total_bytes = 2 * half_bytes

    @staticmethod
    def make(fd: int, half_bytes: int) -> Arena:
        """A new one in a memfd, filled. Other processes open it by its path for as long as this one keeps `fd` open;
        nothing is left behind however that ends."""
        # In huge pages, so that what is measured is stores, not how a hypervisor has small pages back that lay idle
        # while it was the others' turn.
        os.ftruncate(fd, 2 * half_bytes)
        FileMapping(fd, 2 * half_bytes).use_huge_pages(fd, 0, 2 * half_bytes)
        os.posix_fallocate(fd, 0, 2 * half_bytes)
        arena = Arena(Path(f"/proc/{os.getpid()}/fd/{fd}"), half_bytes)
        words = arena.bytes.view(np.uint64)
        words[: len(words) // 2] = np.random.default_rng(6).integers(
            0, 1 << 64, len(words) // 2, dtype=np.uint64
        )
        arena.bytes[half_bytes:] = 0
        return arena

    def start(self, shape: Shape) -> int:
        """Where the batch begins in either half."""
        room = (self.half_bytes - shape.total_bytes) // PAGE_BYTES + 1
        return shape.place * (shape.total_bytes // PAGE_BYTES + 1) % room * PAGE_BYTES

    def pieces(self, shape: Shape, *, back: bool) -> tuple[list[list[int]], list[list[int]]]:
        """Addresses and sizes of each object's fragments; `back`: in the half for what comes back."""
        piece = shape.size // shape.fragments
        first = self.address + self.start(shape) + (self.half_bytes if back else 0)
        rows = np.random.default_rng(shape.order).permutation(shape.count)
        layers = np.arange(shape.fragments, dtype=np.int64) * (shape.count * piece)
        addresses = first + layers[np.newaxis, :] + rows[:, np.newaxis] * piece
        return addresses.tolist(), [[piece] * shape.fragments] * shape.count

    def wipe(self, shape: Shape) -> None:
        """Forgets what came back."""
        first = self.half_bytes + self.start(shape)
        self.bytes[first : first + shape.total_bytes] = 0

    def came_back(self, shape: Shape) -> bool:
        """Whether every byte is what was put."""
        first = self.start(shape)
        put = self.bytes[first : first + shape.total_bytes]
        back = self.bytes[self.half_bytes + first : self.half_bytes + first + shape.total_bytes]
        return bool(np.array_equal(put, back))
