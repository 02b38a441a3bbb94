"""Which hashes a segment may hold: a filter that never says no of one that it does hold (pure, no clock).

The master alone knows what is in the pool; a node that is alone in it knows as much, but looks nothing up by hash. Three bits
of 32 a hash are enough to know nearly all new ones for new. Hashes that leave the segment stay in the filter until it is made
anew, from the headers, which is when it has taken in as many as it was made for.
"""

from __future__ import annotations

import numpy as np

from moonpool.schemas.header import SlotState
from moonpool.schemas.keyspace import Kind
from moonpool.schemas.messages import Entries, Moved
from moonpool.schemas.packed import U32, U64
from moonpool.store_client.node.headers import states_in
from moonpool.store_client.node.slots import Slots

BITS_A_HASH = 32
HASHES_MIN = 1 << 16
ROWS_A_PIECE = 4096
FEW = 16
"""Hashes that are looked at one by one."""

_MASK = (1 << 64) - 1
_FOLD = 0x9E3779B97F4A7C15
_FACTORS = (0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB)
"""Odd numbers without a pattern."""


class _Filter:
    """Of a fixed size. `hashes_max`: a power of two; beyond it more and more new hashes look known."""

    def __init__(self, hashes_max: int) -> None:
        self.hashes_max = hashes_max
        self.count = 0
        self._shift = 64 - (hashes_max * BITS_A_HASH - 1).bit_length()
        self._bits = np.zeros(hashes_max * BITS_A_HASH // 8, dtype=np.uint8)
        self._view = self._bits.data  # whose bytes are read in half an array's time

    def take(self, number: int) -> bool:
        """Notes a folded hash. Returns whether it may have been there."""
        view, known = self._view, True
        for factor in _FACTORS:
            place = (number * factor & _MASK) >> self._shift
            bit = 1 << (place & 7)
            if not view[place >> 3] & bit:
                known = False
                view[place >> 3] |= bit
        self.count += not known
        return known

    def take_all(self, numbers: U64) -> bool:
        """The same of many. Returns whether one of them may have been there."""
        known = np.ones(len(numbers), dtype=np.bool_)
        for factor in _FACTORS:
            places = (numbers * np.uint64(factor)) >> np.uint64(self._shift)
            bits = np.left_shift(1, (places & np.uint64(7))).astype(np.uint8)
            at = (places >> np.uint64(3)).astype(np.int64)
            known &= (self._bits[at] & bits) != 0
            np.bitwise_or.at(self._bits, at, bits)
        self.count += int(np.count_nonzero(~known))
        return bool(known.any())


class Names:
    """Of one segment. Off until it is wanted. All calls under the node's lock."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._filter: _Filter | None = None
        """Holds all that the segment does."""
        self._next: _Filter | None = None
        """The one to come: the headers up to this one have been read."""
        self._page = self._index = 0

    @property
    def complete(self) -> bool:
        """Whether it can tell what is new."""
        return self._filter is not None

    @property
    def behind(self) -> bool:
        """Whether there is something for `work` to read."""
        return self._next is not None

    def start(self) -> None:
        """It is wanted. Does nothing where it was."""
        if self._filter is None and self._next is None:
            self._begin()

    def stop(self) -> None:
        """It isn't any more."""
        self._filter = self._next = None

    def take(self, op: Entries | Moved) -> bool:
        """Notes plain objects that were committed, or have moved to where `work` may have been. Returns whether all of them
        are new for certain."""
        if self._filter is None and self._next is None:
            return False
        count = len(op.slots) // 4
        if not count or self._slots.keyspaces.spec(op.keyspace).kind is not Kind.FLAT:
            return False
        if count <= FEW:
            size = len(op.hashes) // count
            numbers = [_folded(op.hashes[at : at + size]) for at in range(0, count * size, size)]
            known = [[one.take(number) for number in numbers] for one in (self._filter, self._next) if one]
        else:
            columns = _folded_all(np.frombuffer(op.hashes, dtype=np.uint8).reshape(count, -1))
            twice = len(np.unique(columns)) < count
            known = [[one.take_all(columns) or twice] for one in (self._filter, self._next) if one]
        if self._filter is None:
            return False
        if self._next is None and self._filter.count > self._filter.hashes_max:
            self._begin()
        return not any(known[0])

    def work(self) -> bool:
        """Reads some more headers into the filter to come. Returns whether any are left."""
        if self._next is None:
            return False
        rows_left = ROWS_A_PIECE
        for page in (np.flatnonzero(self._slots.allocator.slots[self._page :]) + self._page).tolist():
            if page != self._page:
                self._page, self._index = page, 0
            here = self._slots.page_slots(page)[self._index : self._index + rows_left]
            self._read(self._next, here)
            rows_left -= len(here)
            self._index += len(here)
            if not rows_left:
                return True
        self._filter, self._next = self._next, None
        return False

    def _begin(self) -> None:
        hashes_max = HASHES_MIN
        while hashes_max < 2 * self._slots.committed:
            hashes_max *= 2
        self._next, self._page, self._index = _Filter(hashes_max), 0, 0

    def _read(self, into: _Filter, slots: U32) -> None:
        rows = self._slots.rows(slots)
        held = rows[states_in(self._slots.headers.words[rows]) == SlotState.COMMITTED]
        if len(held):
            headers = self._slots.headers.snapshot(held)
            texts = np.ascontiguousarray(headers["block_hash"]).view(np.uint8).reshape(len(held), -1)
            into.take_all(_folded_all(texts))


def _folded(block_hash: bytes) -> int:
    low, high = int.from_bytes(block_hash[:8], "little"), int.from_bytes(block_hash[8:16], "little")
    return low ^ (high * _FOLD & _MASK)


def _folded_all(hashes: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> U64:
    """The same of each row; of shorter hashes than 16 bytes as if zeros followed, as in a header."""
    words = np.zeros((len(hashes), 16), dtype=np.uint8)
    width = min(16, hashes.shape[1])
    words[:, :width] = hashes[:, :width]
    pairs = words.view("<u8")
    return np.asarray(pairs[:, 0] ^ (pairs[:, 1] * np.uint64(_FOLD)), dtype=np.uint64)
