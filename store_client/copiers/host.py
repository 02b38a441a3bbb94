"""Copies within host memory: scattered pieces at the speed of one large memcpy, without the interpreter lock.

A loop in C does it where there is one (native.py). The rest of this file is for builds without a compiler.
Measured on a 2-core EPYC, 256 MiB between a mapped segment and scattered pieces (GB/s at pieces of
4 KiB / 16 KiB / 64 KiB / 1 MiB; one large memcpy of cold memory into scattered pages reaches 6 to 7):

    numpy index assignment, take    5.8   6.5   6.5   6.7    <- used
    ctypes memmove a piece          2.6   4.7   5.8   6.3    <- what numpy can't express
    preadv on the segment file      4.1   4.7   5.1   5.3
    process_vm_readv on ourselves   3.8   4.9   5.3   5.6

In 4 MiB batches (warm) the order is the same: 13, 6, 10 and 7 GB/s. A memmove a piece has a worse fault: each
call takes the interpreter lock again, and beside a busy Python thread that can cost 5 ms a piece.
"""

from __future__ import annotations

import ctypes
import itertools

import numpy as np

from moonpool.schemas.packed import I64, U64
from moonpool.store_client import native
from moonpool.store_client.raw_memory import items_at

UNIT_BYTES_MAX = 4096
"""numpy lets go of the interpreter lock only for more than 500 items, so large pieces are moved as small items:
at 4 KiB it is held for 2 MiB (0.3 ms) at most."""

UNIT_BYTES_MIN = 256
"""Smaller items cost more than a memmove a piece."""

PIECES_MIN = 3
"""Below, setting up numpy costs more than it saves."""

KEEP_LOCK_BELOW_BYTES = 128 << 10
"""A short memmove keeps the interpreter lock: taking it again would cost more than the copy."""

_arguments = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memmove = ctypes.CFUNCTYPE(ctypes.c_void_p, *_arguments)(("memmove", ctypes.CDLL(None)))
_memmove_keeping_lock = ctypes.PYFUNCTYPE(ctypes.c_void_p, *_arguments)(("memmove", ctypes.CDLL(None)))


class HostCopier:
    """The DeviceCopier where engine memory is host memory. Has no state."""

    device = False

    def register(self, address: int, size_bytes: int) -> None:
        """Nothing to do: any host memory will do."""

    def unregister(self, address: int) -> None:
        """Nothing to do."""

    def to_engine(self, engine: U64, host: U64, sizes: U64) -> None:
        """Copies host pieces to engine pieces."""
        if native.HOT:
            native.copy_pieces(engine, host, sizes)
            return
        for first, end, contiguous in _stretches(host, sizes):
            part = slice(first, end)
            if not (contiguous and _scatter(engine[part], int(host[first]), sizes[part])):
                _move(engine[part], host[part], sizes[part])

    def from_engine(self, host: U64, engine: U64, sizes: U64) -> None:
        """Copies engine pieces to host pieces."""
        if native.HOT:
            native.copy_pieces(host, engine, sizes)
            return
        for first, end, contiguous in _stretches(host, sizes):
            part = slice(first, end)
            if not (contiguous and _gather(int(host[first]), engine[part], sizes[part])):
                _move(host[part], engine[part], sizes[part])


def _stretches(host: U64, sizes: U64) -> list[tuple[int, int, bool]]:
    """(first, end, contiguous): pieces that follow each other without a gap on the pool's side, and enough of
    them to pay for numpy; otherwise all that is to be moved one by one."""
    if len(sizes) == 0:
        return []
    breaks = np.flatnonzero(host[1:] != host[:-1] + sizes[:-1]) + 1
    if len(breaks) + 1 > len(sizes) // PIECES_MIN:
        return [(0, len(sizes), False)]
    edges = [0, *breaks.tolist(), len(sizes)]
    return [(first, end, end - first >= PIECES_MIN) for first, end in itertools.pairwise(edges)]


def _indexes(addresses: U64, base: int, sizes: U64, unit: int) -> I64:
    """For each item of `unit` bytes in the pieces, its distance from `base` in bytes."""
    counts = (sizes // np.uint64(unit)).astype(np.int64)
    ends = np.cumsum(counts)
    inside = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    result: I64 = np.repeat((addresses - np.uint64(base)).astype(np.int64), counts) + inside * unit
    return result


def _unit(sizes: U64) -> int:
    return int(np.gcd(np.gcd.reduce(sizes), np.uint64(UNIT_BYTES_MAX)))


def _scatter(to: U64, source: int, sizes: U64) -> bool:
    """One contiguous source into scattered pieces. False where its sizes don't suit."""
    unit = _unit(sizes)
    if unit < UNIT_BYTES_MIN:
        return False
    base = int(to.min())
    # Items that overlap, one at each byte: any piece is one of them, however it is aligned.
    memory = items_at(base, int(to.max()) - base + int(sizes.max()) - unit + 1, unit, 1)
    memory[_indexes(to, base, sizes, unit)] = items_at(source, int(sizes.sum()) // unit, unit, unit)
    return True


def _gather(to: int, source: U64, sizes: U64) -> bool:
    """Scattered pieces into one contiguous place. False where sizes or alignment don't suit.

    `take` writes straight into its destination (indexing would make a copy first), but wants its source cut in
    items that don't overlap: hence the common divisor of the distances too.
    """
    base = int(source.min())
    unit = int(np.gcd(np.gcd.reduce(source - np.uint64(base)), np.uint64(_unit(sizes))))
    if unit < UNIT_BYTES_MIN:
        return False
    memory = items_at(base, (int(source.max()) - base + int(sizes.max())) // unit, unit, unit)
    place = items_at(to, int(sizes.sum()) // unit, unit, unit)
    np.take(memory, _indexes(source, base, sizes, unit) // unit, out=place, mode="clip")
    return True


def _move(to: U64, source: U64, sizes: U64) -> None:
    for destination, origin, size in zip(to.tolist(), source.tolist(), sizes.tolist(), strict=True):
        move = _memmove_keeping_lock if size < KEEP_LOCK_BELOW_BYTES else _memmove
        move(destination, origin, size)
