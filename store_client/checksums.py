"""Payload checksums (xxh3_64), as headers hold them: never 0, which means "not known yet"."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import xxhash
from numpy.typing import NDArray

from moonpool.schemas.packed import U64
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.native import COPY_THREADS, HOT
from moonpool.store_client.raw_memory import bytes_at

with suppress(ImportError):
    from moonpool.store_client import _hot


def checksum_of(payload: memoryview | bytes) -> int:
    """Of one object's bytes."""
    return xxhash.xxh3_64_intdigest(payload) or 1


def sums(objects: Fragments, wanted: U64, threads: int = COPY_THREADS) -> U64:
    """The checksums of objects in host memory; 0 of those where `wanted` has 0. Without the interpreter lock, and in several
    threads, where it is much."""
    if HOT:
        columns = (objects.addresses, objects.sizes, objects.offsets, objects.lengths(), wanted)
        return np.frombuffer(_hot.sums(columns, threads), dtype=np.uint64)
    return python_sums(objects, wanted)


def python_sums(objects: Fragments, wanted: U64) -> U64:
    """`sums`, in Python."""
    found = np.zeros(objects.count, dtype=np.uint64)
    pieces = list(zip(objects.addresses.tolist(), objects.sizes.tolist(), strict=True))
    offsets = objects.offsets.tolist()
    for i in np.flatnonzero(wanted).tolist():
        state = xxhash.xxh3_64()
        for address, size in pieces[offsets[i] : offsets[i + 1]]:
            if size:  # else it may have any address, even none
                state.update(bytes_at(address, size).data)
        found[i] = state.intdigest() or 1
    return found


def mismatches(objects: Fragments, told: U64) -> NDArray[np.bool_]:
    """Which objects' bytes don't have the checksum told of them. A checksum of 0 isn't known yet: no mismatch."""
    wrong: NDArray[np.bool_] = sums(objects, told) != told
    return wrong
