"""A bare TCP client that sends whatever bytes a test wants."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

from moonpool.schemas.framing import FRAME_BYTES_MAX, FrameReader, encode_frame
from moonpool.schemas.messages import Message, decode_from_master, encode
from support.echo_server import HELLO

TIMEOUT_S = 30.0


class RawPeer:
    """One connection. Reads with a timeout."""

    def __init__(self, address: str, receive_buffer_bytes: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((host, int(port)))
        self._reader = FrameReader("server", FRAME_BYTES_MAX)
        self._frames: list[tuple[int, bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, request_id: int, message: Message) -> None:
        """One frame."""
        self.socket.sendall(encode_frame(request_id, encode(message)))

    def greet(self) -> Message:
        """Hello; returns what it is answered by."""
        self.send(1, HELLO)
        return self.receive()[1]

    def receive(self) -> tuple[int, Message]:
        """The next frame. Raises EOFError where the server has closed."""
        while not self._frames:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self._frames.extend(self._reader.feed(data))
        request_id, body = self._frames.pop(0)
        return request_id, decode_from_master(body)

    def is_closed(self) -> bool:
        """Whether the server closes in time, whatever it still says."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True
