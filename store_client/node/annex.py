"""What a segment's head says in words: the specs of its keyspaces and the lock files of its writers.

With them a segment can be read, and adopted, with no engine and no master alive. Two areas are written in turn, each
with a sequence and a checksum, so that a process killed in the middle of a write leaves the older one whole.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import xxhash

from moonpool.schemas.errors import Overloaded
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.store_client.node.layout import ANNEX_BYTES, ANNEX_OFFSET

_PREFIX = struct.Struct("<QQQ")  # checksum of the rest, sequence, length


class SessionRecord(msgspec.Struct, frozen=True, array_like=True):
    """A writer that may have open grants, and the file that it holds a flock on: its path, and which inode it is."""

    session: int
    lock_path: str
    device: int = 0
    inode: int = 0


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """Content of an annex."""

    specs: list[KeyspaceSpec] = []
    sessions: list[SessionRecord] = []


_decode = msgspec.msgpack.Decoder(Facts).decode


class Annex:
    """The two areas of one mapped segment."""

    def __init__(self, buffer: Any) -> None:
        self._view = memoryview(buffer).cast("B")[ANNEX_OFFSET : ANNEX_OFFSET + 2 * ANNEX_BYTES]
        found = [self._load(area) for area in range(2)]
        self._area, (self._sequence, self.facts) = max(enumerate(found), key=lambda pair: pair[1][0])

    def store(self, facts: Facts) -> None:
        """Replaces the content. Raises Overloaded, and keeps what was there, where it doesn't fit."""
        body = msgspec.msgpack.encode(facts)
        if len(body) > ANNEX_BYTES - _PREFIX.size:
            raise Overloaded(
                what="the segment's table of keyspaces and sessions", limit=f"{ANNEX_BYTES} bytes"
            )
        area = 1 - self._area
        start = area * ANNEX_BYTES
        rest = _PREFIX.pack(0, self._sequence + 1, len(body))[8:] + body
        self._view[start + 8 : start + 8 + len(rest)] = rest
        self._view[start : start + 8] = xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little")
        self._area, self._sequence, self.facts = area, self._sequence + 1, facts

    def _load(self, area: int) -> tuple[int, Facts]:
        """(sequence, facts) of an area; (0, nothing) where it isn't whole."""
        view = self._view[area * ANNEX_BYTES : (area + 1) * ANNEX_BYTES]
        checksum, sequence, length = _PREFIX.unpack_from(view)
        if length > ANNEX_BYTES - _PREFIX.size:
            return 0, Facts()
        if xxhash.xxh3_64_intdigest(view[8 : _PREFIX.size + length]) != checksum:
            return 0, Facts()
        try:
            return sequence, _decode(view[_PREFIX.size : _PREFIX.size + length])
        except msgspec.DecodeError:
            return 0, Facts()
