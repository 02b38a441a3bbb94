"""A server in threads that answers each message as a test says: one of another version, say, or with another clock."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from moonpool.schemas.framing import FrameReader, encode_frame
from moonpool.schemas.messages import Message, decode_master_request, encode

Answer = Callable[[Message], Message]


class ScriptedServer:
    """Listens on a free port of 127.0.0.1 while `with` lasts."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        for sock in [self._listener, *self._sockets]:
            sock.close()

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._sockets.append(sock)
                self._start(lambda sock=sock: self._serve(sock))  # type: ignore[misc]

    def _serve(self, sock: socket.socket) -> None:
        reader = FrameReader("client")
        with contextlib.suppress(OSError):
            while data := sock.recv(65536):
                for request_id, body in reader.feed(data):
                    sock.sendall(encode_frame(request_id, encode(self._answer(decode_master_request(body)))))
