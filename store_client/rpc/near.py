"""The near door: a Unix socket beside a server's TCP port, for peers on its own host.

An exchange over it takes 20 to 40 us less than over loopback. Its name is random, is told over the TCP connection alone, and
lives in the network namespace that the port lives in, without a file: whoever gets there could have stayed on the port.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import termios
from array import array
from dataclasses import dataclass
from typing import Any

from moonpool.schemas.errors import ProtocolError
from moonpool.schemas.messages import Welcome
from moonpool.store_client.rpc.address import Address

NEAR_TIMEOUT_S = 0.5
"""To get in; a peer that can't stays on the port."""

_NAME = re.compile(r"moonpool-[0-9a-f]{32}")
_INET = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True, slots=True)
class NearDoor:
    """Of a server that listens on `port`."""

    port: int
    name: str

    @staticmethod
    def new(port: int) -> NearDoor:
        """One that nobody can guess."""
        return NearDoor(port, f"moonpool-{secrets.token_hex(16)}")

    def bind(self) -> socket.socket:
        """Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(_path(self.name))
        except OSError:
            sock.close()
            raise
        return sock


def comes_near(sock: Any) -> bool:
    """Whether a server's connection has come through its near door."""
    name = sock.getsockname() if sock.family == socket.AF_UNIX else ""
    return isinstance(name, bytes) and name.startswith(b"\0")  # names that are no path are bytes


def arrived(sock: Any) -> bytes:
    """What lies in a socket by now, whoever else reads it at other times: no more than it holds, however much is sent."""
    fd, size_bytes = sock.fileno(), array("i", (0,))
    try:
        fcntl.ioctl(fd, termios.FIONREAD, size_bytes)
        return os.read(fd, size_bytes[0]) if size_bytes[0] else b""
    except OSError:  # the other reader is told of it too
        return b""


def is_within_host(sock: Any) -> bool:
    """Whether both ends of a connection are one host, as far as they can see."""
    if sock is None or sock.family not in _INET:
        return False
    try:
        return bool(sock.getsockname()[0] == sock.getpeername()[0])
    except OSError:  # the peer has gone
        return False


def near_address(sock: Any, welcome: Welcome) -> Address | None:
    """Of the near door of the server at the other end, where it has one, and nothing (a proxy, a tunnel, another host's port)
    lies between it and this plain socket. A peer can't have us knock at doors that are none of ours."""
    if not welcome.near or _NAME.fullmatch(welcome.near) is None or not is_within_host(sock):
        return None
    return Address(path=_path(welcome.near)) if sock.getpeername()[1] == welcome.near_port else None


def check_same(address: str, welcome: Welcome, same_as: Welcome | None) -> None:
    """Raises ProtocolError where somebody else than who sent `same_as` is behind the near door."""
    if same_as is not None and welcome.near != same_as.near:
        raise ProtocolError(peer=address, reason="another server is behind its near door")


def _path(name: str) -> str:
    return f"\0{name}"
