"""Payloads for readers who may see one tenant alone.

A lane sends straight out of the segment, and a header that no longer fits tells the reader to forget what it got. Who
may not see the bytes in the first place must not get them: they are copied, looked up, and only then sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from moonpool.schemas.header import Headers
from moonpool.schemas.packed import I64, U64
from moonpool.store_client.node.headers import Rows, fence

COPY_BYTES = 1 << 20

WordsAt = Callable[[Rows], U64]
"""The words of these headers as they are now."""


def checked_pieces(
    memory: memoryview, starts: I64, lengths: I64, rows: Rows, words: U64, words_at: WordsAt
) -> Iterator[bytes]:
    """The payloads in order, in copies of COPY_BYTES at most. Zeros in the place of those whose header had lost its
    `words` by the time they had been copied: their slots may be somebody else's."""
    first = 0
    ends = np.cumsum(lengths)
    while first < len(lengths):
        done = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + COPY_BYTES, side="right")))
        some = slice(first, last)
        if int(lengths[first]) > COPY_BYTES:
            same = partial(_same, words_at, rows[some], words[some])
            yield from _large(memory, int(starts[first]), int(lengths[first]), same)
        else:
            parts = [
                bytes(memory[start : start + length])
                for start, length in zip(starts[some].tolist(), lengths[some].tolist(), strict=True)
            ]
            fence()
            for index in np.flatnonzero(words_at(rows[some]) != words[some]).tolist():
                parts[index] = bytes(len(parts[index]))
            yield b"".join(parts)
        first = last


def _large(memory: memoryview, start: int, length: int, same: Callable[[], bool]) -> Iterator[bytes]:
    for done in range(0, length, COPY_BYTES):
        part = bytes(memory[start + done : start + min(done + COPY_BYTES, length)])
        fence()
        yield part if same() else bytes(len(part))


def _same(words_at: WordsAt, rows: Rows, words: U64) -> bool:
    return bool((words_at(rows) == words).all())


def own_headers(headers: Headers, keyspaces: U64) -> Headers:
    """The headers, those of other keyspaces blanked."""
    own = np.isin(headers["keyspace"], keyspaces)
    if own.all():
        return headers
    shown = headers.copy()
    shown[~own] = np.zeros(1, dtype=headers.dtype)
    return shown
