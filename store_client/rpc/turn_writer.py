"""What a server's connection sends: in one write a turn, so that pipelined requests don't cost a system call each."""

from __future__ import annotations

import asyncio

from moonpool.schemas.framing import PREFIX

FLUSH_BYTES = 64 << 10
"""What is large goes at once, or the peer's back-pressure would be noticed too late."""


class TurnWriter:
    """Of one transport."""

    __slots__ = ("_bytes", "_frames", "_transport", "in_turn")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.in_turn = False
        """Whether frames are kept until `flush`."""
        self._transport = transport
        self._frames: list[bytes] = []
        self._bytes = 0

    def write(self, request_id: int, body: bytes) -> None:
        """One frame."""
        frame = PREFIX.pack(4 + len(body), request_id) + body
        if not self.in_turn:
            if not self._transport.is_closing():
                self._transport.write(frame)
            return
        self._frames.append(frame)
        self._bytes += len(body)
        if self._bytes > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """What was kept."""
        if self._frames:
            data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
            self._frames.clear()
            self._bytes = 0
            if not self._transport.is_closing():
                self._transport.write(data)
