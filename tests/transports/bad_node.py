"""A node that misbehaves: bare sockets that say what a test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from support.node_info import node_info

from moonpool.schemas.framing import PREFIX, PROTOCOL_VERSION, encode_frame
from moonpool.schemas.header import HEADER_DTYPE, SlotState, keyspace_word, word_of
from moonpool.schemas.messages import NodeInfo, Welcome, encode

SIZE = 1000

WRONG_HEADERS: list[dict[str, object]] = [
    {"word": word_of(SlotState.COMMITTED, 2)},
    {"word": word_of(SlotState.WRITING, 1)},
    {"word": word_of(SlotState.FREE, 1)},
    {"keyspace": 5},
    {"rank": 1},
    {"block_hash": b"x" * 32},
    {"length": SIZE - 1},
]
"""Fields in which a header differs from that of the object that is asked for."""

Serve = Callable[[socket.socket], None]


class BadNode:
    """Serves each connection with the next of the functions (the last one from then on), after the handshake."""

    def __init__(self, *serve: Serve) -> None:
        self._serve = list(serve)
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            serve = self._serve[min(self.connections, len(self._serve) - 1)]
            self.connections += 1
            thread = threading.Thread(target=self._run, args=(sock, serve))
            self._threads.append(thread)
            thread.start()

    def _run(self, sock: socket.socket, serve: Serve) -> None:
        with sock:
            sock.settimeout(60)
            hello, _ = read_request(sock)
            sock.sendall(encode_frame(hello, encode(Welcome(PROTOCOL_VERSION, "node", 0, 1 << 20))))
            with suppress(OSError, EOFError):
                serve(sock)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


def read_frame(sock: socket.socket) -> bytes:
    """The body of the next one. Raises EOFError."""
    return read_request(sock)[1]


def read_request(sock: socket.socket) -> tuple[int, bytes]:
    """(request id, body) of the next frame. Raises EOFError."""

    def take(count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = sock.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    length, request_id = PREFIX.unpack(take(PREFIX.size))
    return request_id, take(length - 4)


def header(**fields: object) -> bytes:
    """Of an object of SIZE bytes, apart from `fields`."""
    row = np.zeros(1, dtype=HEADER_DTYPE)
    row["word"] = word_of(SlotState.COMMITTED, 1)
    row["keyspace"] = keyspace_word(bytes(16))
    row["length"] = SIZE
    for name, value in fields.items():
        row[name] = value
    return row.tobytes()


def info_of(bad: BadNode, *, door: bool) -> NodeInfo:
    """What a master would say of it. `door`: it is the RPC port that misbehaves, and not the data port."""
    return node_info("bad", rpc_address=bad.address if door else "", data_address=bad.address)
