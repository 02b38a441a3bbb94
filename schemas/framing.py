"""The wire's frames, as pure bytes: u32 length, u32 request id, MessagePack body (all little-endian).

`length` counts what follows it. Request id 0 is a push that nobody answers. The reader never trusts a
length: a frame over the limit in force is a ProtocolError before a byte of it is kept.

The body of a request may begin with TRACE_MARK and the W3C traceparent of the span that it belongs to. Only servers whose
Welcome says that they make spans are sent any; for all others nothing is on the wire and nothing is looked at.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator

from moonpool.schemas.errors import ProtocolError

PROTOCOL_VERSION = 1
PREFIX = struct.Struct("<II")
FRAME_BYTES_MAX = 16 << 20
HANDSHAKE_BYTES_MAX = 4096
PUSH_ID = 0
TRACE_MARK = b"\xc1"
"""MessagePack never uses this byte."""
TRACEPARENT = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
TRACEPARENT_BYTES = 55

Body = bytes | memoryview
"""Of a frame."""


def encode_frame(request_id: int, body: bytes) -> bytes:
    """One frame. The caller keeps bodies under FRAME_BYTES_MAX."""
    return PREFIX.pack(4 + len(body), request_id) + body


def with_trace(traceparent: str, body: bytes) -> bytes:
    """A request's body with the span that it belongs to; empty: none."""
    return TRACE_MARK + traceparent.encode() + body if traceparent else body


def split_trace(body: Body) -> tuple[str, Body]:
    """(traceparent, body without it). Raises ValueError where there is a mark and no traceparent behind it."""
    if body[:1] != TRACE_MARK:
        return "", body
    end = len(TRACE_MARK) + TRACEPARENT_BYTES
    parent = body[len(TRACE_MARK) : end]
    if TRACEPARENT.fullmatch(parent) is None:
        raise ValueError("a trace mark without a traceparent")
    return bytes(parent).decode(), body[end:]


def check_length(length: int, limit_bytes: int, peer: str) -> None:
    """Raises ProtocolError where a length prefix is impossible or over the limit."""
    if not 4 < length <= limit_bytes:
        raise ProtocolError(peer=peer, reason=f"frame of {length} bytes, allowed are 5 to {limit_bytes}")


class FrameReader:
    """Cuts a byte stream into frames. Holds at most one partial frame.

    `limit_bytes` starts at the handshake's and is raised by its owner once the peer is known.
    """

    def __init__(self, peer: str, limit_bytes: int = HANDSHAKE_BYTES_MAX) -> None:
        self.limit_bytes = limit_bytes
        self._peer = peer
        self.pending = bytearray()
        """What has come of a frame that isn't complete; not to be changed by others."""

    def feed(self, data: bytes) -> Generator[tuple[int, bytes], None, None]:
        """Yields (request id, body) of each frame that `data` completes. Raises ProtocolError.

        The limit is read anew for each frame, so it may be raised between two of them. A caller that stops
        early closes the generator; the next feed, of nothing maybe, goes on with the rest.
        """
        buffer = self.pending
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= PREFIX.size:
                length, request_id = PREFIX.unpack_from(buffer, start)
                check_length(length, self.limit_bytes, self._peer)
                end = start + 4 + length
                if end > len(buffer):
                    break
                body = bytes(memoryview(buffer)[start + PREFIX.size : end])
                start = end
                yield request_id, body
        finally:
            del buffer[:start]

    def whole(self, data: bytes) -> tuple[int, memoryview] | None:
        """(request id, body, not copied) where nothing is pending and `data` is one frame, the usual case; else None, and
        `feed` takes it. Raises ProtocolError."""
        if self.pending or len(data) <= PREFIX.size:
            return None
        length, request_id = PREFIX.unpack_from(data)
        if length + 4 != len(data):
            return None
        if length > self.limit_bytes:
            check_length(length, self.limit_bytes, self._peer)
        return request_id, memoryview(data)[PREFIX.size :]
