"""Values that are handed out as memory: BufferHandle, and host memory by address."""

from __future__ import annotations

import mmap
import threading

import numpy as np

from moonpool.store_client.mooncake.codes import INVALID_PARAMS, OK
from moonpool.store_client.raw_memory import address_of


class _Owned:
    """Bytes as writable memory, described to numpy, which keeps this object as long as any view lives."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        address = address_of(np.frombuffer(value, dtype=np.int8))
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (len(value),),
            "typestr": "|i1",
        }


class BufferHandle(np.ndarray[tuple[int], np.dtype[np.int8]]):
    """A value that was read, as memory (buffer protocol). Lives as long as it, or a view of it, is referred to.

    An array, because before Python 3.12 a class can't offer the buffer protocol by itself.
    """

    @staticmethod
    def of(value: bytes) -> BufferHandle:
        """Without a copy: the caller gives the value away, and lets nobody else see it."""
        return np.asarray(_Owned(value)).view(BufferHandle)

    def ptr(self) -> int:
        """Address of the first byte."""
        return address_of(self)

    def size(self) -> int:  # type: ignore[override] # a method, as Mooncake's
        """Bytes."""
        return self.nbytes

    def __repr__(self) -> str:
        return f"BufferHandle({self.nbytes} bytes)"


class MooncakeHostMemAllocator:
    """Page-aligned host memory, by address. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: dict[int, mmap.mmap] = {}

    def alloc(self, size: int) -> int:
        """The address; 0 where `size` isn't over 0 or there is no such memory."""
        if size <= 0:
            return 0
        try:
            piece = mmap.mmap(-1, size)
        except (OSError, OverflowError, ValueError):
            return 0
        address = address_of(np.frombuffer(piece, dtype=np.uint8))
        with self._lock:
            self._pieces[address] = piece
        return address

    def free(self, address: int) -> int:
        """0; -600 where `alloc` didn't return this address. Nobody may use the memory any more."""
        with self._lock:
            piece = self._pieces.pop(address, None)
        if piece is None:
            return INVALID_PARAMS
        piece.close()
        return OK
