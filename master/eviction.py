"""Which rows go first: the policy seam, and the plainest policy. The queues are in victim_queues.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from moonpool.schemas.packed import U8, U64

FIRST_VICTIM = -1
"""Score of leaves that stayed unready too long: below whatever a policy says."""

USES_MAX = 15
"""Uses of a row are counted up to here."""

SAME_USE_S = 5.0
"""A request renews its leases every 3 s: what comes sooner than this is the same use."""


class EvictionPolicy(Protocol):
    """Which rows go first: those with the lowest second of last use + credit of their level. Rows whose worth is
    equal go by position, the deepest first. Pure: what it learns, it is told."""

    @property
    def credits_s(self) -> Sequence[float]:
        """One a level, that of level 0 always 0. May change at any time."""
        ...

    def level(self, uses: int) -> int:
        """The level of rows that were used so often. Must not fall while `uses` rises."""
        ...

    def recall(self, block_hash: bytes) -> int:
        """How often a new row had been used before it was evicted; 0 where nothing is known."""
        ...

    def recall_all(self, names: U64) -> U8:
        """The same of many, by their names: see `asked`."""
        ...

    def recall_packed(self, packed: bytes, hash_bytes: int) -> bytes:
        """The same of packed hashes, a byte each; empty where nothing is known of any."""
        ...

    @property
    def sample_mask(self) -> int:
        """Requests are to tell the names (first 8 bytes of a hash, as a little-endian number) where these bits are
        zero; -1: none."""
        ...

    def asked(self, names: U64, mask: int, now_s: float) -> None:
        """A request wants blocks of which these are the names whose bits `mask` are zero, in order of position. Quick:
        the work is done by `study`."""
        ...

    def evicted(self, block_hash: bytes, uses: int) -> None:
        """A row has left to make room."""
        ...

    def evicted_all(self, names: U64, uses: U8) -> None:
        """The same of many."""
        ...

    def full(self, rows: int) -> None:
        """Somebody needs room while there are so many rows."""
        ...

    def study(self) -> bool:
        """Learns from one request that was asked lately. Whether more of them wait. Some hundred times a second, and before
        victims are chosen."""
        ...

    def facts(self) -> dict[str, int | float | str]:
        """For people."""
        ...

    def validate(self) -> None:
        """Asserts every invariant."""
        ...


class LeastRecentlyUsed:
    """One level; learns nothing."""

    credits_s: Sequence[float] = (0.0,)
    sample_mask = -1

    def level(self, uses: int) -> int:
        """The only one."""
        return 0

    def recall(self, block_hash: bytes) -> int:
        """Nothing."""
        return 0

    def recall_all(self, names: U64) -> U8:
        """Nothing."""
        return np.zeros(len(names), dtype=np.uint8)

    def recall_packed(self, packed: bytes, hash_bytes: int) -> bytes:
        """Nothing."""
        return b""

    def asked(self, names: U64, mask: int, now_s: float) -> None:
        """Of no interest."""

    def evicted(self, block_hash: bytes, uses: int) -> None:
        """Of no interest."""

    def evicted_all(self, names: U64, uses: U8) -> None:
        """Of no interest."""

    def full(self, rows: int) -> None:
        """Of no interest."""

    def study(self) -> bool:
        """Nothing to learn."""
        return False

    def facts(self) -> dict[str, int | float | str]:
        """None."""
        return {}

    def validate(self) -> None:
        """Nothing to assert."""


def names_of(packed: bytes, hash_bytes: int) -> U64:
    """Names of packed hashes: their first 8 bytes, as policies know them."""
    names: U64 = np.frombuffer(packed, dtype="<u8")[:: hash_bytes // 8]
    return names
