"""The header region of a segment as numpy views, and the order of stores that readers rely on (I3)."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.header import (
    GENERATION_BITS,
    GENERATION_MASK,
    HEADER_BYTES,
    HEADER_DTYPE,
    Headers,
    SlotState,
)
from moonpool.schemas.packed import U64
from moonpool.store_client.node.layout import Layout

Rows = NDArray[np.intp]
"""Indices of headers in the region: page * headers_per_page + index."""

DOOMED = 1
"""Bit of `flags`: dropped while it was WRITING. Never becomes COMMITTED; its space is its writer's until it ends."""

COPIED = 2
"""Bit of `flags`: a master ordered this copy, so it is no surplus."""

_CELLS = HEADER_BYTES // 8
_fence_lock = threading.Lock()


def fence() -> None:
    """Orders all loads and stores before it against those after it, on any CPU.

    Taking a free lock is an atomic exchange, which x86 treats as a full barrier. ARM's acquire and release bar one
    direction each, so two in a row are needed; the pair costs some 100 ns.
    """
    with _fence_lock:
        pass
    with _fence_lock:
        pass


def words_of(state: SlotState, generations: U64) -> U64:
    """First words of headers in one state."""
    return generations | np.uint64(state << GENERATION_BITS)


def states_in(words: U64) -> U64:
    """State in each first word."""
    return words >> np.uint64(GENERATION_BITS)


def generations_in(words: U64) -> U64:
    """Generation in each first word."""
    return words & np.uint64(GENERATION_MASK)


def hash_column(headers: Headers, field: str, hash_bytes: int) -> bytes:
    """The hashes of a field, packed. Goes round numpy's strings, which lose zeros at their end."""
    return _hashes(headers, field, hash_bytes).tobytes()


def fill_hashes(headers: Headers, field: str, packed: bytes, hash_bytes: int) -> None:
    """The reverse of hash_column, for headers of the caller's own."""
    _hashes(headers, field, hash_bytes)[:, 0] = np.frombuffer(packed, dtype=f"V{hash_bytes}")


def _hashes(headers: Headers, field: str, hash_bytes: int) -> NDArray[np.void]:
    """View of one column, whose items numpy moves as a whole: byte by byte takes thirty times as long."""
    start = HEADER_DTYPE.fields[field][1]  # type: ignore[index]
    raw = headers.view(np.uint8).reshape(len(headers), HEADER_BYTES)
    return raw[:, start : start + hash_bytes].view(f"V{hash_bytes}")


class HeaderTable:
    """All headers of one segment. Rows of pages that have no slot size must not be touched: they may be holes."""

    def __init__(self, buffer: Any, layout: Layout) -> None:
        rows = layout.page_count * layout.headers_per_page
        cells = np.frombuffer(buffer, dtype="<u8", count=rows * _CELLS, offset=layout.header_offset)
        self.fields: Headers = cells.view(HEADER_DTYPE)
        self._cells = cells.reshape(rows, _CELLS)
        # Aligned 8-byte cells: numpy stores each of them with one instruction.
        self.words: U64 = self._cells[:, 0]

    def place(self, rows: Rows, headers: Headers) -> None:
        """Writes whole headers, the first word last: until then readers see the word that was there before."""
        cells = headers.view("<u8").reshape(len(rows), _CELLS)
        self._cells[rows, 1:] = cells[:, 1:]
        fence()
        self.words[rows] = cells[:, 0]
        fence()

    def turn(self, rows: Rows, words: U64) -> None:
        """Stores new first words, after everything that was written before."""
        fence()
        self.words[rows] = words
        fence()

    def snapshot(self, rows: Rows) -> Headers:
        """Copies of headers."""
        copies: Headers = self._cells.take(rows, axis=0).view(HEADER_DTYPE).reshape(len(rows))
        return copies

    def proof(self, rows: Rows) -> Headers:
        """Copies that prove what was loaded before this call. Whoever takes a slot changes the word first and writes it
        last: what was read before the word belongs to it."""
        fence()
        copies = self.snapshot(rows)
        fence()
        copies["word"] = self.words[rows]
        return copies
