"""The RPC server: listens on TCP and Unix sockets and gives each request to one handler."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable

from moonpool.schemas.errors import RpcFailed
from moonpool.schemas.framing import Body
from moonpool.schemas.messages import Message
from moonpool.store_client.rpc.access import Access
from moonpool.store_client.rpc.address import check_unix_path
from moonpool.store_client.rpc.near import NearDoor
from moonpool.store_client.rpc.peer import Handler, Limits
from moonpool.store_client.rpc.server_connection import ServerConnection
from moonpool.store_client.rpc.server_spans import ServerSpans
from moonpool.store_client.rpc.service import Service
from moonpool.store_client.rpc.timings import CallTimings
from moonpool.store_client.rpc.tls import ServerTls
from moonpool.store_client.rpc.tls_listener import TlsListener

log = logging.getLogger(__name__)

BACKLOG = 1024
CLOSE_WAIT_S = 1.0


class RpcServer:
    """Serves one handler on any number of listening sockets. To be used in one event loop."""

    def __init__(
        self,
        handler: Handler,
        decode: Callable[[Body], Message],
        server_name: str,
        limits: Limits | None = None,
        *,
        access: Access | None = None,
        tls: ServerTls | None = None,
        spans: ServerSpans | None = None,
    ) -> None:
        """`access`: whom it lets in (None: everybody). `tls`: of its TCP ports (None: they speak plain text). `spans`: of
        its calls (None: it makes none)."""
        self._service = Service(
            handler, decode, server_name, limits or Limits(), access or Access(), tls, spans
        )
        self._listeners: list[asyncio.Server] = []
        self._tls_listeners: list[TlsListener] = []
        self._unix_paths: list[str] = []
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """Connections open now, those in their handshake too."""
        return len(self._service.connections)

    @property
    def timings(self) -> CallTimings:
        """How long calls took. To be read in the server's event loop."""
        return self._service.timings

    async def listen_tcp(self, host: str, port: int) -> int:
        """Returns the actual port (0 picks a free one). Listens on the first address that `host` resolves to.
        Raises RpcFailed where that can't be had."""
        loop = asyncio.get_running_loop()
        try:
            infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, target = infos[0]
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(target)
                await self._listen(sock)
            except BaseException:
                sock.close()
                raise
        except (OSError, UnicodeError) as error:  # UnicodeError: a host that is no name
            raise RpcFailed(peer=f"{host}:{port}", reason=f"cannot listen: {error}") from error
        actual: int = sock.getsockname()[1]
        return actual

    async def listen_unix(self, path: str) -> None:
        """Takes the place of a socket file that is there: the caller makes sure that nobody else serves it.
        Only this user may connect."""
        check_unix_path(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            sock.bind(path)
            os.chmod(path, 0o600)  # nobody can connect before listen(), so this is in time
            await self._listen(sock)
        except OSError as error:
            sock.close()
            raise RpcFailed(peer=f"unix:{path}", reason=f"cannot listen: {error}") from error
        self._unix_paths.append(path)

    async def listen_near(self, port: int) -> None:
        """Beside that TCP port, for peers of this host; not where it speaks TLS, which may ask for certificates."""
        if self._service.tls is not None:
            return
        door = NearDoor.new(port)
        try:
            await self._listen(door.bind())
        except OSError as error:  # a sandbox without Unix sockets
            log.info("%s serves its own host over tcp: %s", self._service.name, error)
        else:
            self._service.near = door

    async def close(self) -> None:
        """Stops listening and ends all connections; requests under way are cancelled."""
        for listener in self._listeners:
            listener.close()
        for tls_listener in self._tls_listeners:
            await tls_listener.close()
        for path in self._unix_paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._service.connections):
            connection.close()
        if not await self._ended():
            for connection in list(self._service.connections):
                connection.abort("the server closes")
            if not await self._ended():
                log.error("%s leaves requests behind that don't end", self._service.name)
        for listener in self._listeners:
            await listener.wait_closed()

    async def _ended(self) -> bool:
        end_s = time.monotonic() + CLOSE_WAIT_S
        while (busy := self._service.connections or self._service.tasks) and time.monotonic() < end_s:
            await asyncio.sleep(0.005)
        return not busy

    async def _listen(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()

        def make() -> ServerConnection:
            return ServerConnection(self._service)

        if sock.family == socket.AF_UNIX:
            self._listeners.append(await loop.create_unix_server(make, sock=sock, backlog=BACKLOG))
        elif self._service.tls is None:
            self._listeners.append(await loop.create_server(make, sock=sock, backlog=BACKLOG))
        else:
            sock.listen(BACKLOG)
            sock.setblocking(False)
            timeout_s = self._service.limits.handshake_timeout_s
            self._tls_listeners.append(TlsListener(sock, self._service.tls, make, timeout_s))
        if self._sweep is None:
            self._sweep_stalled()

    def _sweep_stalled(self) -> None:
        now_s = time.monotonic()
        for connection in list(self._service.connections):
            connection.abort_if_stalled(now_s)
        pause_s = min(1.0, self._service.limits.handshake_timeout_s / 4)
        self._sweep = asyncio.get_running_loop().call_later(pause_s, self._sweep_stalled)
