"""Copies between a CUDA device and pinned host memory, by the copy engines alone.

A kernel that reads or writes host memory would take bandwidth from the model (two blocks of threads cost a
decode step a third of its speed), a memcpy call a piece costs 3 us of CPU. cudaMemcpyBatchAsync costs 0.4 us a
piece and runs at link speed for pieces of 32 KiB and more, if a call has 64 to 256 pieces. No torch in here:
ctypes on the runtime library that the engine has loaded, whose calls release the interpreter lock.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from moonpool.schemas.errors import TransferFailed
from moonpool.schemas.packed import U64

log = logging.getLogger(__name__)

PIECES_PER_CALL = 256
STREAMS_MAX = 8
_HOST_TO_DEVICE_OR_BACK = 4  # cudaMemcpyDefault: the runtime tells by the addresses
_REGISTER_PORTABLE = 1
_EVENT_FLAGS = 1 | 2  # blocking sync: the waiting thread sleeps; no timing
_STREAM_NON_BLOCKING = 1
_BATCH_SINCE = 12080
_BATCH_WITHOUT_FAIL_INDEX_SINCE = 13000


class _Attributes(ctypes.Structure):
    """cudaMemcpyAttributes: source read in stream order, no location hints."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("hints", ctypes.c_int * 4),
        ("flags", ctypes.c_uint),
    )


class _Stream:
    """A stream and the event that its caller sleeps on."""

    def __init__(self, copier: CudaCopier) -> None:
        self.handle = ctypes.c_void_p()
        self.event = ctypes.c_void_p()
        try:
            copier.check("cudaStreamCreateWithFlags", ctypes.byref(self.handle), _STREAM_NON_BLOCKING)
            copier.check("cudaEventCreateWithFlags", ctypes.byref(self.event), _EVENT_FLAGS)
        except TransferFailed:
            copier.discard(self)
            raise


class CudaCopier:
    """The DeviceCopier of one CUDA device. Thread-safe: each copy under way has a stream of its own."""

    device = True

    def __init__(self, device_index: int) -> None:
        self._runtime = _load_runtime()
        self._index = device_index
        self._streams: list[_Stream] = []
        self._slots = threading.BoundedSemaphore(STREAMS_MAX)
        self._lock = threading.Lock()
        version = ctypes.c_int()
        self.check("cudaRuntimeGetVersion", ctypes.byref(version))
        self._version = version.value
        if self._version < _BATCH_SINCE:
            log.warning("CUDA runtime %d has no batched copies; copies cost one call a piece", self._version)

    def check(self, call: str, *arguments: object) -> None:
        """Calls the runtime. Raises TransferFailed with its own words."""
        code = getattr(self._runtime, call)(*arguments)
        if code:
            self._runtime.cudaGetErrorString.restype = ctypes.c_char_p
            reason = self._runtime.cudaGetErrorString(code) or b"unknown"
            raise TransferFailed(peer=f"cuda:{self._index}", reason=f"{call}: {reason.decode()} ({code})")

    def discard(self, stream: _Stream) -> None:
        """Destroys what there is of it. Errors are ignored: the one that led here is about to be told."""
        if stream.handle.value is not None:
            self._runtime.cudaStreamDestroy(stream.handle)
        if stream.event.value is not None:
            self._runtime.cudaEventDestroy(stream.event)

    def register(self, address: int, size_bytes: int) -> None:
        """Pins a mapped segment with one call (a copy must not span two registrations)."""
        self.check("cudaSetDevice", self._index)
        self.check(
            "cudaHostRegister", ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), _REGISTER_PORTABLE
        )

    def unregister(self, address: int) -> None:
        """Unpins what `register` pinned."""
        self.check("cudaSetDevice", self._index)
        self.check("cudaHostUnregister", ctypes.c_void_p(address))

    def to_engine(self, engine: U64, host: U64, sizes: U64) -> None:
        """Host pieces to device pieces; returns when they have landed."""
        self._copy(engine, host, sizes)

    def from_engine(self, host: U64, engine: U64, sizes: U64) -> None:
        """Device pieces to host pieces; returns when they have landed."""
        self._copy(host, engine, sizes)

    def _copy(self, to: U64, source: U64, sizes: U64) -> None:
        to, source, sizes = (np.ascontiguousarray(column, dtype=np.uint64) for column in (to, source, sizes))
        with self._stream() as stream:
            try:
                for first in range(0, len(sizes), PIECES_PER_CALL):
                    part = slice(first, first + PIECES_PER_CALL)
                    self._submit(stream, to[part], source[part], sizes[part])
            finally:
                # Also after a failed call: what was submitted before it must not land later.
                self.check("cudaEventRecord", stream.event, stream.handle)
                self.check("cudaEventSynchronize", stream.event)

    def _submit(self, stream: _Stream, to: U64, source: U64, sizes: U64) -> None:
        if self._version < _BATCH_SINCE:
            for destination, origin, size in zip(to.tolist(), source.tolist(), sizes.tolist(), strict=True):
                self.check(
                    "cudaMemcpyAsync",
                    ctypes.c_void_p(destination),
                    ctypes.c_void_p(origin),
                    ctypes.c_size_t(size),
                    _HOST_TO_DEVICE_OR_BACK,
                    stream.handle,
                )
            return
        attributes, first = _Attributes(1), ctypes.c_size_t(0)
        fail_index = ctypes.c_size_t()
        older = self._version < _BATCH_WITHOUT_FAIL_INDEX_SINCE
        self.check(
            "cudaMemcpyBatchAsync",
            ctypes.c_void_p(to.ctypes.data),
            ctypes.c_void_p(source.ctypes.data),
            ctypes.c_void_p(sizes.ctypes.data),
            ctypes.c_size_t(len(sizes)),
            ctypes.byref(attributes),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            *((ctypes.byref(fail_index),) if older else ()),
            stream.handle,
        )

    @contextmanager
    def _stream(self) -> Iterator[_Stream]:
        with self._slots:
            self.check("cudaSetDevice", self._index)  # the current device is a property of the thread
            with self._lock:
                stream = self._streams.pop() if self._streams else None
            stream = stream or _Stream(self)
            try:
                yield stream
            except BaseException:
                self.discard(stream)  # its error may be sticky
                raise
            with self._lock:
                self._streams.append(stream)


_POINTER_ATTRIBUTES_BYTES = 256
"""More than cudaPointerAttributes has in any version: two ints, type and device, come first."""
_MEMORY_DEVICE = 2
_MEMORY_MANAGED = 3


def device_of(address: int) -> int | None:
    """The CUDA device that memory belongs to, None for host memory. Raises TransferFailed where CUDA isn't there."""
    attributes = (ctypes.c_int * (_POINTER_ATTRIBUTES_BYTES // 4))()
    if _load_runtime().cudaPointerGetAttributes(attributes, ctypes.c_void_p(address)):
        return None
    return attributes[1] if attributes[0] in (_MEMORY_DEVICE, _MEMORY_MANAGED) else None


def _load_runtime() -> ctypes.CDLL:
    """The CUDA runtime that the engine has loaded, else any there is. Raises TransferFailed."""
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise TransferFailed(peer="cuda", reason="no libcudart.so.13 or .12 on the library path")
