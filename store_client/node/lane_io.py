"""Blocking socket calls of the data lanes: exact counts, scattered, within deadlines, with bounded memory.

Sockets block in the kernel, with SO_RCVTIMEO and SO_SNDTIMEO as the pause without progress that ends them: one call
moves megabytes with the interpreter lock released.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence

from moonpool.schemas.errors import DeadlineExceeded, ProtocolError, RpcFailed
from moonpool.schemas.framing import PREFIX, check_length

PIECES_MAX = 1024
"""Buffers of one system call (IOV_MAX)."""


def set_pause(sock: socket.socket, pause_s: float) -> None:
    """How long one call waits for the peer to take or give a byte."""
    sock.settimeout(None)
    packed = struct.pack("ll", int(pause_s), int(pause_s % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, packed)


def receive(sock: socket.socket, pieces: Sequence[memoryview], deadline_s: float, peer: str) -> None:
    """Fills all pieces. Raises RpcFailed (closed, reset), DeadlineExceeded (monotonic, checked between calls)."""
    for first in range(0, len(pieces), PIECES_MAX):
        left = list(pieces[first : first + PIECES_MAX])
        while left:
            _check_deadline(deadline_s, peer)
            try:
                count = sock.recvmsg_into(left, 0, socket.MSG_WAITALL)[0]
            except BlockingIOError:
                raise DeadlineExceeded(peer=peer, what="with bytes", timeout_s=_pause_s(sock)) from None
            except OSError as error:
                raise RpcFailed(peer=peer, reason=str(error.strerror or error)) from error
            if not count:
                raise RpcFailed(peer=peer, reason="closed the connection")
            left = _rest(left, count)


def send(sock: socket.socket, pieces: Sequence[memoryview | bytes], deadline_s: float, peer: str) -> None:
    """Sends all pieces; every byte has been copied out of them once this returns. Raises as `receive` does.

    Neither sendfile nor MSG_ZEROCOPY: with those the kernel reads the memory later, after the trailer was taken.
    """
    for first in range(0, len(pieces), PIECES_MAX):
        left = [memoryview(piece) for piece in pieces[first : first + PIECES_MAX]]
        while left:
            _check_deadline(deadline_s, peer)
            try:
                count = sock.sendmsg(left)
            except BlockingIOError:
                raise DeadlineExceeded(peer=peer, what="by reading", timeout_s=_pause_s(sock)) from None
            except OSError as error:
                raise RpcFailed(peer=peer, reason=str(error.strerror or error)) from error
            left = _rest(left, count)


def receive_frame(
    sock: socket.socket,
    limit_bytes: int,
    timeout_s: float,
    peer: str,
    begun: Callable[[], None] | None = None,
) -> tuple[int, bytes]:
    """(request id, body) of the next frame, which has `timeout_s` to arrive once its first byte is there.
    `begun` is called at that first byte.

    Raises ProtocolError where its length is over the limit, before anything is allocated for it.
    """
    prefix = memoryview(bytearray(PREFIX.size))
    try:
        # The first byte may take as long as the socket's pause: an idle lane is no fault.
        receive(sock, [prefix[:1]], float("inf"), peer)
        if begun is not None:
            begun()
        deadline_s = time.monotonic() + timeout_s
        receive(sock, [prefix[1:]], deadline_s, peer)
        length, request_id = PREFIX.unpack(prefix)
        check_length(length, limit_bytes, peer)
        body = bytearray(length - 4)
        receive(sock, [memoryview(body)], deadline_s, peer)
    except MemoryError as error:
        raise ProtocolError(peer=peer, reason="no memory for its frame") from error
    return request_id, bytes(body)


def has_bytes(sock: socket.socket) -> bool:
    """Whether something has arrived that nobody has read yet (the peer's goodbye counts)."""
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        pass  # broken: its reader is about to find out
    return True


def _rest(pieces: list[memoryview], count: int) -> list[memoryview]:
    """What is left of `pieces` after `count` bytes."""
    for index, piece in enumerate(pieces):
        if count < piece.nbytes:
            return [piece[count:], *pieces[index + 1 :]]
        count -= piece.nbytes
    return []


def _check_deadline(deadline_s: float, peer: str) -> None:
    if time.monotonic() > deadline_s:
        raise DeadlineExceeded(peer=peer, what="in full", timeout_s=0.0)


def _pause_s(sock: socket.socket) -> float:
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.calcsize("ll"))
    seconds, micros = struct.unpack("ll", packed)
    return float(seconds + micros / 1e6)
