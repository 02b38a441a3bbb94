"""Scattered memory to and from a socket: libc's sendmsg and recvmsg on arrays of (address, size) made by numpy.

One call moves up to 1024 pieces without the interpreter lock; Python's own sendmsg wants an object a piece.
The socket must be a blocking one: deadlines go through SO_RCVTIMEO and SO_SNDTIMEO. An SSLSocket is served piece by
piece by its own calls, with its own timeout.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator

import numpy as np

from moonpool.schemas.packed import U64
from moonpool.store_client.raw_memory import address_of

PIECES_PER_CALL = 1024  # the kernel's IOV_MAX

SECURED_BYTES = 256 << 10
"""Of one call where TLS lies between: libc can't be handed what is to be ciphered first."""


class _MessageHeader(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint32),
        ("pieces", ctypes.c_void_p),
        ("piece_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


_libc = ctypes.CDLL(None, use_errno=True)


def _function(name: str) -> Callable[[int, object, int], int]:
    function = getattr(_libc, name)
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    function.restype = ctypes.c_ssize_t
    call: Callable[[int, object, int], int] = function
    return call


_sendmsg = _function("sendmsg")
_recvmsg = _function("recvmsg")


def send_pieces(sock: socket.socket, addresses: U64, sizes: U64, deadline_s: float) -> None:
    """Sends all pieces in order. Raises TimeoutError at the deadline, OSError where the peer is gone."""
    if isinstance(sock, ssl.SSLSocket):
        for view in _views(addresses, sizes):
            sock.settimeout(_left_s(deadline_s))
            sock.sendall(view)
        return
    _move(sock, _sendmsg, socket.MSG_NOSIGNAL, socket.SO_SNDTIMEO, addresses, sizes, deadline_s)


def receive_pieces(sock: socket.socket, addresses: U64, sizes: U64, deadline_s: float) -> None:
    """Fills all pieces in order. Raises TimeoutError at the deadline, OSError where the peer is gone."""
    if isinstance(sock, ssl.SSLSocket):
        for view in _views(addresses, sizes):
            _fill(sock, view, deadline_s)
        return
    _move(sock, _recvmsg, socket.MSG_WAITALL, socket.SO_RCVTIMEO, addresses, sizes, deadline_s)


def _views(addresses: U64, sizes: U64) -> Iterator[memoryview]:
    """The pieces as memory that Python's own calls take, SECURED_BYTES at most each."""
    for address, size in zip(addresses.tolist(), sizes.tolist(), strict=True):
        for first in range(0, size, SECURED_BYTES):
            count = min(SECURED_BYTES, size - first)
            yield memoryview((ctypes.c_ubyte * count).from_address(address + first)).cast("B")


def _fill(sock: ssl.SSLSocket, view: memoryview, deadline_s: float) -> None:
    done = 0
    while done < view.nbytes:
        sock.settimeout(_left_s(deadline_s))
        count = sock.recv_into(view[done:])
        if not count:
            raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection")
        done += count


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("deadline")
    return left_s


def set_timeout(sock: socket.socket, option: int, deadline_s: float) -> None:
    """Bounds the next blocking call. Raises TimeoutError where nothing is left."""
    left_s = _left_s(deadline_s)
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(left_s)
        return
    microseconds = max(1, int(left_s * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", *divmod(microseconds, 1_000_000)))


def _move(
    sock: socket.socket,
    call: Callable[[int, object, int], int],
    flags: int,
    timeout_option: int,
    addresses: U64,
    sizes: U64,
    deadline_s: float,
) -> None:
    pieces = np.empty((len(sizes), 2), dtype=np.uint64)
    pieces[:, 0], pieces[:, 1] = addresses, sizes
    ends: U64 | None = None
    total = int(sizes.sum())
    header = _MessageHeader()
    place = address_of(pieces)
    done = first = 0
    while done < total:
        header.pieces = place + 16 * first
        header.piece_count = min(PIECES_PER_CALL, len(pieces) - first)
        set_timeout(sock, timeout_option, deadline_s)
        moved = call(sock.fileno(), ctypes.byref(header), flags)
        if moved <= 0:
            _explain(moved)
            continue
        done += moved
        if done == total:  # the usual case
            return
        if ends is None:
            ends = np.cumsum(sizes, dtype=np.uint64)
        # Go on behind what was moved: at the first piece that isn't whole yet, which loses its beginning.
        first = int(np.searchsorted(ends, np.uint64(done), side="right"))
        left = int(ends[first]) - done
        pieces[first, 0] += pieces[first, 1] - np.uint64(left)
        pieces[first, 1] = left


def _explain(moved: int) -> None:
    """Raises what a call that moved nothing means; returns where it was only interrupted."""
    if moved == 0:
        raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection")
    code = ctypes.get_errno()
    if code == errno.EINTR:
        return
    if code in (errno.EAGAIN, errno.EWOULDBLOCK):
        raise TimeoutError("deadline")
    raise OSError(code, os.strerror(code))
