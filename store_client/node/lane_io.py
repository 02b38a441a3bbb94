"""Blocking socket calls of the data lanes: exact counts, scattered, within deadlines, with bounded memory.

Sockets block in the kernel, with SO_RCVTIMEO and SO_SNDTIMEO as the pause without progress that ends them: one call
moves megabytes with the interpreter lock released. Where TLS lies between, that pause is the SSLSocket's own timeout.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence

from moonpool.schemas.errors import DeadlineExceeded, ProtocolError, RpcFailed
from moonpool.schemas.framing import PREFIX, check_length
from moonpool.store_client.rpc.tls import HANDSHAKE_BYTE
from moonpool.store_client.rpc.tls_listener import refusal_of_plain_text

PIECES_MAX = 1024
"""Buffers of one system call (IOV_MAX)."""

SECURED_BYTES = 256 << 10
"""Of one call where TLS lies between: its records are made of no more at once."""


def set_pause(sock: socket.socket, pause_s: float) -> None:
    """How long one call waits for the peer to take or give a byte."""
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(pause_s)
        return
    sock.settimeout(None)
    packed = struct.pack("ll", int(pause_s), int(pause_s % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, packed)


def receive(sock: socket.socket, pieces: Sequence[memoryview], deadline_s: float, peer: str) -> None:
    """Fills all pieces. Raises RpcFailed (closed, reset), DeadlineExceeded (monotonic, checked between calls)."""
    if isinstance(sock, ssl.SSLSocket):
        _receive_secured(sock, pieces, deadline_s, peer)
        return
    for first in range(0, len(pieces), PIECES_MAX):
        left = list(pieces[first : first + PIECES_MAX])
        while left:
            _check_deadline(deadline_s, peer)
            left = _rest(left, _receive_once(sock, left, socket.MSG_WAITALL, peer))


def send(
    sock: socket.socket,
    pieces: Sequence[memoryview | bytes],
    deadline_s: float,
    peer: str,
    *,
    more: bool = False,
) -> None:
    """Sends all pieces; every byte has been copied out of them once this returns. Raises as `receive` does. `more` comes
    at once: until then the last segment isn't sent, and the peer isn't woken for it alone.

    Neither sendfile nor MSG_ZEROCOPY: with those the kernel reads the memory later, after the trailer was taken.
    """
    if isinstance(sock, ssl.SSLSocket):
        _send_secured(sock, pieces, deadline_s, peer)
        return
    for first in range(0, len(pieces), PIECES_MAX):
        left = [memoryview(piece) for piece in pieces[first : first + PIECES_MAX]]
        while left:
            _check_deadline(deadline_s, peer)
            try:
                count = sock.sendmsg(left, (), socket.MSG_MORE if more else 0)
            except BlockingIOError:
                raise DeadlineExceeded(peer=peer, what="by reading", timeout_s=_pause_s(sock)) from None
            except OSError as error:
                raise RpcFailed(peer=peer, reason=str(error.strerror or error)) from error
            left = _rest(left, count)


def shake_hands(sock: socket.socket, deadline_s: float, peer: str) -> None:
    """The server's side of a TLS handshake. Whoever comes without TLS is told so. Raises MoonpoolError."""
    assert isinstance(sock, ssl.SSLSocket)
    try:
        sock.settimeout(max(0.001, deadline_s - time.monotonic()))
        if not _speaks_tls(sock, deadline_s):
            socket.socket.send(sock, refusal_of_plain_text())
            raise RpcFailed(peer=peer, reason="came without TLS")
        sock.do_handshake()
    except TimeoutError:
        raise DeadlineExceeded(peer=peer, what="with a TLS handshake", timeout_s=0.0) from None
    except (OSError, ValueError) as error:  # ValueError: cut meanwhile
        raise RpcFailed(peer=peer, reason=f"TLS: {getattr(error, 'reason', None) or error}") from error


def _speaks_tls(sock: ssl.SSLSocket, deadline_s: float) -> bool:
    """Looks at the first byte. Raises TimeoutError, OSError."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if not poll.poll(max(0.0, 1000 * (deadline_s - time.monotonic()))):
        raise TimeoutError
    first = socket.socket.recv(sock, 1, socket.MSG_PEEK)
    return not first or first[0] == HANDSHAKE_BYTE


def _receive_secured(sock: ssl.SSLSocket, pieces: Sequence[memoryview], deadline_s: float, peer: str) -> None:
    for piece in pieces:
        done = 0
        while done < piece.nbytes:
            _check_deadline(deadline_s, peer)
            try:
                count = sock.recv_into(piece[done : done + SECURED_BYTES])
            except TimeoutError:
                timeout_s = sock.gettimeout() or 0.0
                raise DeadlineExceeded(peer=peer, what="with bytes", timeout_s=timeout_s) from None
            except (OSError, ValueError) as error:  # ValueError: cut meanwhile
                raise RpcFailed(peer=peer, reason=str(error)) from error
            if not count:
                raise RpcFailed(peer=peer, reason="closed the connection")
            done += count


def _send_secured(
    sock: ssl.SSLSocket, pieces: Sequence[memoryview | bytes], deadline_s: float, peer: str
) -> None:
    for piece in pieces:
        view = memoryview(piece)
        for first in range(0, view.nbytes, SECURED_BYTES):
            _check_deadline(deadline_s, peer)
            try:
                sock.sendall(view[first : first + SECURED_BYTES])
            except TimeoutError:
                timeout_s = sock.gettimeout() or 0.0
                raise DeadlineExceeded(peer=peer, what="by reading", timeout_s=timeout_s) from None
            except (OSError, ValueError) as error:  # ValueError: cut meanwhile
                raise RpcFailed(peer=peer, reason=str(error)) from error


def receive_frame(
    sock: socket.socket,
    limit_bytes: int,
    timeout_s: float,
    peer: str,
    begun: Callable[[], None],
    idle_s: float,
) -> tuple[int, bytes]:
    """(request id, body) of the next frame, which has `timeout_s` to arrive once its first byte is there.
    `begun` is called at that first byte, which may take `idle_s`, or the socket's pause where that is longer.

    Raises ProtocolError where its length is over the limit, before anything is allocated for it.
    """
    prefix = memoryview(bytearray(PREFIX.size))
    try:
        there = _first_bytes(sock, prefix, time.monotonic() + idle_s, peer)
        begun()
        deadline_s = time.monotonic() + timeout_s
        if there < PREFIX.size:
            receive(sock, [prefix[there:]], deadline_s, peer)
        length, request_id = PREFIX.unpack(prefix)
        check_length(length, limit_bytes, peer)
        body = bytearray(length - 4)
        receive(sock, [memoryview(body)], deadline_s, peer)
    except MemoryError as error:
        raise ProtocolError(peer=peer, reason="no memory for its frame") from error
    return request_id, bytes(body)


def _first_bytes(sock: socket.socket, room: memoryview, until_s: float, peer: str) -> int:
    """Waits for at least a byte; several pauses long, as an idle lane is no fault. Raises as `receive` does."""
    while True:
        try:
            return _receive_some(sock, room, peer)
        except DeadlineExceeded:
            if time.monotonic() >= until_s:
                raise


def _receive_some(sock: socket.socket, room: memoryview, peer: str) -> int:
    """Waits for at least a byte. Raises as `receive` does."""
    if isinstance(sock, ssl.SSLSocket):
        _receive_secured(sock, [room[:1]], float("inf"), peer)
        return 1
    return _receive_once(sock, [room], 0, peer)


def _receive_once(sock: socket.socket, pieces: list[memoryview], flags: int, peer: str) -> int:
    """One call, and how many bytes it brought. Raises as `receive` does."""
    try:
        count = sock.recvmsg_into(pieces, 0, flags)[0]
    except BlockingIOError:
        raise DeadlineExceeded(peer=peer, what="with bytes", timeout_s=_pause_s(sock)) from None
    except OSError as error:
        raise RpcFailed(peer=peer, reason=str(error.strerror or error)) from error
    if not count:
        raise RpcFailed(peer=peer, reason="closed the connection")
    return count


def has_bytes(sock: socket.socket) -> bool:
    """Whether something has arrived that nobody has read yet (the peer's goodbye counts)."""
    if isinstance(sock, ssl.SSLSocket):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(sock.pending() or poll.poll(0))
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
