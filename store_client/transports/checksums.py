"""Payload checksums (xxh3_64) of objects in host memory."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from moonpool.schemas.packed import U64
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.raw_memory import bytes_at


def mismatches(objects: Fragments, told: U64) -> NDArray[np.bool_]:
    """Which objects' bytes don't have the checksum told of them. A checksum of 0 isn't known yet: no mismatch."""
    wrong = np.zeros(objects.count, dtype=np.bool_)
    filled = objects.sizes > 0
    base = int(objects.addresses.min(where=filled, initial=1 << 63))
    starts = np.where(
        filled, objects.addresses, np.uint64(base)
    )  # an empty piece may have any address, even none
    ends = starts + objects.sizes
    memory = bytes_at(base, int(ends.max(initial=base)) - base).data
    first, last = (starts - np.uint64(base)).tolist(), (ends - np.uint64(base)).tolist()
    offsets = objects.offsets.tolist()
    for i in np.flatnonzero(told).tolist():
        state = xxhash.xxh3_64()
        for piece in range(offsets[i], offsets[i + 1]):
            state.update(memory[first[piece] : last[piece]])
        wrong[i] = state.intdigest() != int(told[i])
    return wrong
