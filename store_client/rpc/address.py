"""Addresses of servers: "host:port", "[v6]:port" or "unix:/path". Dialling one within a deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from moonpool.schemas.errors import InvalidParams

UNIX_PATH_BYTES_MAX = 107


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: `path` of a Unix socket, or else `host` and `port`."""

    host: str = ""
    port: int = 0
    path: str = ""

    @staticmethod
    def parse(text: str) -> Address:
        """Raises InvalidParams."""
        if text.startswith("unix:"):
            return Address(path=check_unix_path(text.removeprefix("unix:")))
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise InvalidParams(field="address", value=text, allowed="host:port, [v6]:port or unix:/path")
        try:
            host.encode("idna")
        except UnicodeError:
            allowed = "host names of parts of 1 to 63 characters, with dots between"
            raise InvalidParams(field="address", value=ascii(text)[1:-1], allowed=allowed) from None
        return Address(host=host, port=int(port))


def check_unix_path(path: str) -> str:
    """The path itself. Raises InvalidParams where no socket could have it."""
    if not 0 < len(path.encode()) <= UNIX_PATH_BYTES_MAX:
        allowed = f"1 to {UNIX_PATH_BYTES_MAX} bytes"
        raise InvalidParams(field="path of a Unix socket", value=path, allowed=allowed)
    return path


def dial(address: Address, deadline_s: float) -> socket.socket:
    """A connected socket. Raises OSError, TimeoutError at `deadline_s` (monotonic)."""
    if address.path:
        return _connect(socket.AF_UNIX, address.path, deadline_s)
    failure = OSError(f"no address of {address.host}")
    for family, _, _, _, target in _resolve_in_time(address.host, address.port, deadline_s):
        try:
            sock = _connect(family, target, deadline_s)
        except TimeoutError:
            raise
        except OSError as error:
            failure = error
        else:
            set_tcp_options(sock)
            return sock
    raise failure


def set_tcp_options(sock: socket.socket) -> None:
    """No delay of small frames; a peer whose host has gone is noticed within a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    _stop_pacing(sock)


def _stop_pacing(sock: socket.socket) -> None:
    """Within a host there is no line to share: algorithms that pace, as BBR, only send later what fits the caches now, at
    twice the processor time. To other hosts the kernel's choice stays."""
    with contextlib.suppress(OSError, ValueError):  # no such algorithm, or the peer has gone
        if ip_address(sock.getpeername()[0]).is_loopback:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def resolve(host: str, port: int | None, flags: int = 0) -> list[tuple[Any, ...]]:
    """socket.getaddrinfo of streams. Raises OSError, also for what can't be a name: getaddrinfo has a ValueError for that."""
    try:
        return list(socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags))
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"{host!a} is no host name") from error


def _resolve_in_time(host: str, port: int, deadline_s: float) -> list[tuple[Any, ...]]:
    with contextlib.suppress(socket.gaierror):
        return resolve(host, port, socket.AI_NUMERICHOST)
    # The system's resolver knows no deadline, so it runs in a thread, which is left behind where it is too slow.
    found: Future[list[tuple[Any, ...]]] = Future()

    def run() -> None:
        try:
            found.set_result(resolve(host, port))
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=run, name=f"resolve {host}", daemon=True).start()
    return found.result(max(0.0, deadline_s - time.monotonic()))


def _connect(family: int, target: Any, deadline_s: float) -> socket.socket:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(left_s)
        sock.connect(target)
    except BaseException:
        sock.close()
        raise
    return sock
