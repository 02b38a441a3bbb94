"""Ghosts: how often rows had been used that were evicted since, 4 bytes each."""

from __future__ import annotations

from array import array

import numpy as np

from moonpool.master.columns import view
from moonpool.schemas.packed import U8, U64
from moonpool.store_client import native

SLOTS_A_ROW = 8
"""Many more blocks come by than stay: a chat that goes on after ten minutes was evicted long ago."""

SLOTS_MIN = 1024
_TAG_SHIFT = 36  # a slot's number and its tag come from different bits of the name
_TAG_BITS = 28
_USES_BITS = 4


class Ghosts:
    """A table in which later ghosts take the places of earlier ones. Wrong once in 2**28 times, at the price of
    one row's credit. `name`: 64 bits of the block hash."""

    def __init__(self) -> None:
        self._slots = array("I", bytes(4 * SLOTS_MIN))
        self._none = True  # until the pool is full for the first time

    def make_room(self, rows: int) -> None:
        """The pool holds so many rows. Growing forgets what was known, which is seldom and does no harm."""
        wanted = SLOTS_A_ROW * rows
        if wanted > 2 * len(self._slots):
            self._slots = array("I", bytes(4 << (wanted - 1).bit_length()))

    def put(self, name: int, uses: int) -> None:
        """A row with so many uses (1 to USES_MAX) has left."""
        self._none = False
        tag = name >> _TAG_SHIFT & (1 << _TAG_BITS) - 1
        self._slots[name & len(self._slots) - 1] = tag << _USES_BITS | uses

    def take(self, name: int) -> int:
        """The uses of a row that is back; 0 where nothing is known."""
        index = name & len(self._slots) - 1
        found = self._slots[index]
        if found >> _USES_BITS != name >> _TAG_SHIFT & (1 << _TAG_BITS) - 1:
            return 0
        self._slots[index] = 0
        return found & (1 << _USES_BITS) - 1

    def take_all(self, names: U64) -> U8:
        """The same for many rows. Of two ghosts that one name could mean, either may be taken."""
        slots = view(self._slots)
        index = names & np.uint64(len(slots) - 1)
        found = slots[index]
        tags = (names >> np.uint64(_TAG_SHIFT)) & np.uint64((1 << _TAG_BITS) - 1)
        known = (found >> _USES_BITS) == tags
        slots[index[known]] = 0
        uses: U8 = np.where(known, found & ((1 << _USES_BITS) - 1), 0).astype(np.uint8)
        return uses

    def take_packed(self, packed: bytes, hash_bytes: int) -> bytes:
        """`take` of each packed hash, by its name; empty where nothing is known of any."""
        if self._none:
            return b""
        if native.HOT:
            return native.take_ghosts(self._slots, packed, hash_bytes)
        starts = range(0, len(packed), hash_bytes)
        uses = bytes(self.take(int.from_bytes(packed[at : at + 8], "little")) for at in starts)
        return uses if any(uses) else b""

    def put_all(self, names: U64, uses: U8) -> None:
        """Rows with so many uses have left."""
        self._none = False
        slots = view(self._slots)
        tags = (names >> np.uint64(_TAG_SHIFT)) & np.uint64((1 << _TAG_BITS) - 1)
        values = (tags << np.uint64(_USES_BITS)) | uses
        slots[names & np.uint64(len(slots) - 1)] = values
