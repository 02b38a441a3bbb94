"""Piece lists, vectorised: pair the fragments of objects with the slots that hold them, merge what is adjacent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.packed import I64, U64
from moonpool.store_client.fragments import Fragments

FEW = 16
"""Up to so many numbers Python adds up faster than numpy."""


def slot_side(fragments: Fragments, starts: U64) -> U64:
    """Where each piece lies in its object's slot: one address a piece, given each object's first address."""
    ends = np.cumsum(fragments.sizes, dtype=np.uint64)
    before = ends - fragments.sizes  # bytes of all pieces before this one
    object_of = np.repeat(np.arange(fragments.count), np.diff(fragments.offsets))
    lengths = fragments.lengths()
    object_before = np.cumsum(lengths, dtype=np.uint64) - lengths
    addresses: U64 = starts[object_of] + before - object_before[object_of]
    return addresses


def check_fit(fragments: Fragments, lengths: U64) -> None:
    """Of objects that lie inside pages: whether the pieces of each are as long as it. Sizes whose sum only wraps around to
    that are not. Raises ValueError."""
    if (fragments.sizes > lengths.max(initial=0)).any() or not np.array_equal(fragments.lengths(), lengths):
        raise ValueError("pieces that don't fit their objects")


def coalesce(to: U64, source: U64, sizes: U64) -> tuple[U64, U64, U64]:
    """The same copy with empty pieces left out and neighbours merged where both sides are adjacent."""
    filled = sizes > 0
    if not filled.all():
        to, source, sizes = to[filled], source[filled], sizes[filled]
    if len(sizes) < 2:
        return to, source, sizes
    joins = (to[1:] == to[:-1] + sizes[:-1]) & (source[1:] == source[:-1] + sizes[:-1])
    if not joins.any():
        return to, source, sizes
    first = np.flatnonzero(np.concatenate(([True], ~joins)))
    return to[first], source[first], np.add.reduceat(sizes, first)


def trim(fragments: Fragments, lengths: U64) -> Fragments:
    """The first `lengths` bytes of each object's pieces. The caller has checked that they are that long."""
    ends = np.cumsum(fragments.sizes, dtype=np.uint64)
    full = fragments.lengths()
    object_start = np.cumsum(full, dtype=np.uint64) - full
    object_of = np.repeat(np.arange(fragments.count), np.diff(fragments.offsets))
    begins = ends - fragments.sizes - object_start[object_of]
    left = np.maximum(lengths[object_of], begins) - begins
    return Fragments(fragments.addresses, np.minimum(fragments.sizes, left), fragments.offsets)


def split_evenly(lengths: U64, parts_max: int, part_bytes_min: int) -> list[NDArray[np.intp]]:
    """Objects cut into at most `parts_max` consecutive groups of about equal bytes, none made for less than
    `part_bytes_min`."""
    if len(lengths) == 0:
        return []
    if int(lengths.sum()) < 2 * part_bytes_min:  # as all small batches
        return [np.arange(len(lengths))]
    ends = np.cumsum(lengths, dtype=np.uint64)
    total = int(ends[-1])
    parts = max(1, min(parts_max, total // max(part_bytes_min, 1), len(lengths)))
    goals = np.array([total * (k + 1) // parts for k in range(parts - 1)], dtype=np.uint64)
    cuts = np.unique(np.searchsorted(ends, goals, side="left") + 1)
    return [group for group in np.split(np.arange(len(lengths)), cuts) if len(group)]


def total_bytes(lengths: U64) -> int:
    """Of all objects."""
    return sum(lengths.tolist()) if len(lengths) <= FEW else int(np.add.reduce(lengths))


def batches_of(lengths: U64, count_max: int, bytes_max: int) -> Iterator[slice]:
    """Consecutive slices of at most `count_max` objects and `bytes_max` bytes (an object larger than that is alone)."""
    if len(lengths) <= count_max and total_bytes(lengths) <= bytes_max:  # the usual case
        yield from [slice(0, len(lengths))] if len(lengths) else []
        return
    ends = np.cumsum(lengths, dtype=np.uint64)
    first = 0
    while first < len(lengths):
        base = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, np.uint64(base + bytes_max), side="right"))
        stop = min(max(stop, first + 1), first + count_max, len(lengths))
        yield slice(first, stop)
        first = stop


def runs_of_true(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(first, end) of each stretch of True."""
    edges: I64 = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
