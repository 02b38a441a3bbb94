"""What the machine itself can do with a batch: one memcpy an object, or one stream over one tcp connection."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import multiprocessing
import socket
import struct
from collections.abc import Sequence

from moonpool.benchmarks.subjects.base import Pieces

HEAD = struct.Struct("<cQQ")
BUFFER_BYTES = 4 << 20


class Places:
    """Where batches lie in a memory that is filled round and round."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._next = 0
        self._starts: dict[str, int] = {}

    def put(self, keys: Sequence[str], pieces: Pieces) -> int:
        """Where a new batch goes."""
        total = sum(map(sum, pieces[1]))
        start = self._next if self._next + total <= self._size_bytes else 0
        self._next = start + total
        self._starts[keys[0]] = start
        return start

    def get(self, keys: Sequence[str]) -> int:
        """Where one lies."""
        return self._starts[keys[0]]


class MemcpyLimit:
    """A "store" that is a piece of memory: each piece is one memcpy, objects as long as they are."""

    def __init__(self, *, size_bytes: int) -> None:
        self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_SHARED)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        ctypes.memset(self._address, 1, size_bytes)
        self._places = Places(size_bytes)

    def register(self, address: int, size_bytes: int) -> None:
        """See Subject."""

    def put(self, keys: Sequence[str], pieces: Pieces) -> int:
        """See Subject. Fragments are not the machine's affair: one memcpy an object."""
        first = self._address + self._places.put(keys, pieces)
        for at, address, size in _objects(pieces):
            ctypes.memmove(first + at, address, size)
        return len(keys)

    def get(self, keys: Sequence[str], pieces: Pieces) -> int:
        """See Subject."""
        first = self._address + self._places.get(keys)
        for at, address, size in _objects(pieces):
            ctypes.memmove(address, first + at, size)
        return len(keys)

    def exist(self, keys: Sequence[str]) -> int:
        """See Subject."""
        return len(keys)

    def remove(self, keys: Sequence[str]) -> None:
        """See Subject."""

    def close(self) -> None:
        """See Subject."""


class SocketLimit:
    """A process that takes and sends a batch in one piece."""

    def __init__(self, *, size_bytes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._sock = socket.create_connection(listener.getsockname())
            peer, _ = listener.accept()
        for sock in (self._sock, peer):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = multiprocessing.get_context("fork")
        self._peer = context.Process(target=_serve, args=(peer, self._sock, size_bytes), daemon=True)
        self._peer.start()
        peer.close()
        self._places = Places(size_bytes)

    def register(self, address: int, size_bytes: int) -> None:
        """See Subject."""

    def put(self, keys: Sequence[str], pieces: Pieces) -> int:
        """See Subject. One stretch of as many bytes."""
        memory = _stretch(pieces)
        self._sock.sendall(HEAD.pack(b"p", self._places.put(keys, pieces), memory.nbytes))
        self._sock.sendall(memory)
        self._sock.recv(1)
        return len(keys)

    def get(self, keys: Sequence[str], pieces: Pieces) -> int:
        """See Subject."""
        memory = _stretch(pieces)
        self._sock.sendall(HEAD.pack(b"g", self._places.get(keys), memory.nbytes))
        _receive(self._sock, memory)
        return len(keys)

    def exist(self, keys: Sequence[str]) -> int:
        """See Subject."""
        return len(keys)

    def remove(self, keys: Sequence[str]) -> None:
        """See Subject."""

    def close(self) -> None:
        """See Subject."""
        self._sock.close()
        self._peer.join(5)


def _objects(pieces: Pieces) -> list[tuple[int, int, int]]:
    """(offset, address, size) of each object, as if it lay in one piece of the batch's memory."""
    first = min(min(addresses) for addresses in pieces[0])
    ends = itertools.accumulate(map(sum, pieces[1]))
    return [
        (end - size, first + end - size, size) for end, size in zip(ends, map(sum, pieces[1]), strict=True)
    ]


def _stretch(pieces: Pieces) -> memoryview:
    """The memory that all pieces fill, in order of address: they leave no gap."""
    first = min(min(addresses) for addresses in pieces[0])
    total = sum(map(sum, pieces[1]))
    return memoryview((ctypes.c_char * total).from_address(first)).cast("B")


def _receive(sock: socket.socket, memory: memoryview) -> None:
    done = 0
    while done < memory.nbytes:
        count = sock.recv_into(memory[done:], 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError
        done += count


def _serve(sock: socket.socket, other_end: socket.socket, size_bytes: int) -> None:
    other_end.close()
    memory = memoryview(bytearray(size_bytes))
    while head := sock.recv(HEAD.size, socket.MSG_WAITALL):
        do, first, count = HEAD.unpack(head)
        if do == b"p":
            _receive(sock, memory[first : first + count])
            sock.sendall(b".")
        else:
            sock.sendall(memory[first : first + count])
