"""The file store's frames, as pure bytes: magic, length, checksum of those two, checksum of the body, body."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from zlib import crc32

from moonpool.schemas.errors import CorruptStore

MAGIC = b"MPs1"
HEAD = struct.Struct("<4sIII")
BODY_BYTES_MAX = 4 << 20
"""More than any commit: a length above it is no length."""


def encode_frame(body: bytes) -> bytes:
    """One frame."""
    return HEAD.pack(MAGIC, len(body), crc32(MAGIC + len(body).to_bytes(4, "little")), crc32(body)) + body


def encode_frames(bodies: Iterable[bytes]) -> bytes:
    """One after the other."""
    return b"".join(map(encode_frame, bodies))


def _body_at(data: bytes, start: int) -> bytes | None:
    if len(data) - start < HEAD.size:
        return None
    magic, length, head_sum, body_sum = HEAD.unpack_from(data, start)
    if magic != MAGIC or length > BODY_BYTES_MAX or head_sum != crc32(data[start : start + 8]):
        return None
    body = data[start + HEAD.size : start + HEAD.size + length]
    return body if len(body) == length and crc32(body) == body_sum else None


def decode_frames(data: bytes, path: str) -> tuple[list[bytes], int]:
    """The bodies, and how many bytes they fill: what is behind them is the one write that a crash cut off.

    Raises CorruptStore where more than that is damaged: then acknowledged records are gone, and whoever went on
    would not know which.
    """
    bodies: list[bytes] = []
    at = 0
    while at < len(data):
        body = _body_at(data, at)
        if body is None:
            _check_torn(data, at, path)
            break
        bodies.append(body)
        at += HEAD.size + len(body)
    return bodies, at


def _check_torn(data: bytes, at: int, path: str) -> None:
    """A crash cuts off one frame, the last: no whole one can follow it."""
    if len(data) - at > HEAD.size + BODY_BYTES_MAX:
        raise CorruptStore(path=path, offset=at, reason="more bytes follow than one write has")
    later = data.find(MAGIC, at + 1)
    while later >= 0:
        if _body_at(data, later) is not None:
            raise CorruptStore(path=path, offset=at, reason=f"a whole record follows at byte {later}")
        later = data.find(MAGIC, later + 1)
