"""Slot headers: the 128 bytes beside every slot that say whose bytes it holds (invariant I3).

Only the node process writes them. The first word, state and generation, is stored last and alone, so a
reader that sees COMMITTED with the generation it was given sees the whole identity. A reader looks at the
header *after* its payload is complete; anything unexpected is a miss, never somebody else's KV.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 128
GENERATION_BITS = 56
GENERATION_MASK = (1 << GENERATION_BITS) - 1
SLOT_INDEX_BITS = 16
"""A slot number is page << 16 | index: stable names that need no table to be compared."""


class SlotState(IntEnum):
    """What a slot's bytes are worth."""

    FREE = 0
    WRITING = 1  # granted: a writer may be at work
    COMMITTED = 2


HEADER_DTYPE = np.dtype(
    [
        ("word", "<u8"),  # state << 56 | generation
        ("keyspace", "<u8"),  # the first 64 bits of the digest
        ("rank", "<u2"),
        ("hash_bytes", "<u2"),
        ("position", "<u4"),
        ("length", "<u8"),  # payload bytes
        ("checksum", "<u8"),  # xxh3_64 of the payload; 0: not known yet
        ("session", "<u8"),
        ("block_hash", "S32"),
        ("parent_hash", "S32"),
        ("shard", "<u4"),
        ("key_bytes", "<u2"),  # length of the key text that follows the payload in the slot
        ("flags", "<u2"),
        ("put_id", "<u8"),
    ]
)
assert HEADER_DTYPE.itemsize == HEADER_BYTES

Headers = NDArray[np.void]
"""Structured array of HEADER_DTYPE."""


def word_of(state: SlotState, generation: int) -> int:
    """The first word of a header."""
    return (state << GENERATION_BITS) | generation


def state_of(word: int) -> int:
    """State in a first word (an int: memory may hold anything)."""
    return word >> GENERATION_BITS


def generation_of(word: int) -> int:
    """Generation in a first word."""
    return word & GENERATION_MASK


def keyspace_word(digest: bytes) -> int:
    """The 64 bits of a keyspace digest that a header holds."""
    return int.from_bytes(digest[:8], "little")


def slot_number(page: int, index: int) -> int:
    """Name of the slot at `index` of `page`."""
    return (page << SLOT_INDEX_BITS) | index


def holds(
    headers: Headers,
    generations: NDArray[np.uint64],
    keyspace: int,
    rank: int,
    hashes: NDArray[np.bytes_],
    lengths: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    """Which headers, snapshots taken after the payload, prove that it is what was asked for.

    `hashes` is an S32 array padded with zeros (numpy strips those on both sides alike), all other arrays
    have one entry an object. Vectorised: this runs on every read.
    """
    expected = generations | np.uint64(SlotState.COMMITTED << GENERATION_BITS)
    result: NDArray[np.bool_] = (
        (headers["word"] == expected)
        & (headers["keyspace"] == np.uint64(keyspace))
        & (headers["rank"] == rank)
        & (headers["block_hash"] == hashes)
        & (headers["length"] == lengths)
    )
    return result
