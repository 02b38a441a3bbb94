"""A connected socket as a client uses it: a frame goes out, frames come in, each step within a deadline.

Plain sockets are asked in one call of C (hot_rpc.c) without the interpreter's lock; TLS, and builds without a compiler, in
Python.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque

from moonpool.schemas.framing import Body, FrameReader, encode_frame
from moonpool.store_client import native
from moonpool.store_client.rpc.tls import cut

RECEIVE_BYTES = 64 << 10
"""Under malloc's threshold for mappings, so that a receive doesn't map and unmap memory."""

LIMIT_SLACK_S = 0.001
"""By so much a wait may end too late."""


class Wire:
    """Not thread-safe, apart from `interrupt`. All steps raise OSError, TimeoutError at `deadline_s` (monotonic), and
    ProtocolError."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.reader = FrameReader(peer)
        self.heard = False
        """Whether a byte has come since the last frame was sent."""
        self.secured = isinstance(sock, ssl.SSLSocket)
        self._sock = sock
        self._fd = sock.fileno()
        self._native = native.HOT and not self.secured
        self._limited_s = 0.0
        self._frames: deque[tuple[int, Body]] = deque()

    def send(self, request_id: int, body: bytes, deadline_s: float) -> None:
        """One whole frame."""
        self.heard = False
        if self._native:
            native.send(self._fd, request_id, body, deadline_s)
            return
        self._limited_s = 0.0
        self._limit(deadline_s)
        self._sock.sendall(encode_frame(request_id, body))

    def receive(self, deadline_s: float) -> tuple[int, Body]:
        """The next frame: its request id and body."""
        return self._frames.popleft() if self._frames else self._receive(deadline_s)

    def exchange(self, request_id: int, body: bytes, deadline_s: float) -> tuple[int, Body]:
        """Sends one, and receives the next one."""
        if not self._native or self._frames or self.reader.pending:
            self.send(request_id, body, deadline_s)
            return self.receive(deadline_s)
        self.heard = False
        came = native.exchange(self._fd, request_id, body, deadline_s, self.reader.limit_bytes)
        if isinstance(came, tuple):  # the usual case
            self.heard = True
            return came
        return self._feed(came) or self._receive(deadline_s)

    def _receive(self, deadline_s: float) -> tuple[int, Body]:
        while True:
            if self._native:
                limit_bytes = 0 if self.reader.pending else self.reader.limit_bytes
                came = native.exchange(self._fd, 0, b"", deadline_s, limit_bytes)
            else:
                self._limit(deadline_s)
                came = self._sock.recv(RECEIVE_BYTES)
            if isinstance(came, tuple):
                self.heard = True
                return came
            found = self._feed(came)
            if found is not None:
                return found

    def _feed(self, data: bytes) -> tuple[int, Body] | None:
        """The first frame that these bytes complete; the others are kept for later."""
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self.heard = True
        found = self.reader.whole(data)
        if found is not None:
            return found
        self._frames.extend(self.reader.feed(data))
        return self._frames.popleft() if self._frames else None

    def _limit(self, deadline_s: float) -> None:
        """Has the next step on the socket end by then."""
        now_s = time.monotonic()
        if deadline_s <= now_s:
            raise TimeoutError
        if now_s - self._limited_s > LIMIT_SLACK_S:  # a system call
            self._sock.settimeout(deadline_s - now_s)
            self._limited_s = now_s

    def fileno(self) -> int:
        """Of the socket, for who waits for several."""
        return self._fd

    def interrupt(self) -> None:
        """Makes a step that another thread has under way fail soon."""
        cut(self._sock)

    def close(self) -> None:
        """Closes the socket."""
        self._fd = -1  # before the number is another one's
        self._sock.close()
