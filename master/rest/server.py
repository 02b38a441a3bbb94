"""The HTTP server of a master: a thread with an event loop of its own, so that matches never wait behind it."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import socket
import threading
from typing import TYPE_CHECKING

from moonpool.master.rest.gateway import Gateway
from moonpool.master.rest.parts import MasterParts
from moonpool.schemas.access import Authenticator
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import RpcFailed
from moonpool.store_client.rpc.address import resolve
from moonpool.store_client.rpc.https import page_tls
from moonpool.store_client.rpc.tls import ServerTls

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger(__name__)

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "httpx")
BACKLOG = 128
KEEP_ALIVE_S = 30
CLOSE_WAIT_S = 5.0


def missing_libraries() -> list[str]:
    """Those of the extra `master` that the REST interface needs and this Python hasn't."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


class RestServer:
    """Listens from `start` until `close`."""

    def __init__(self, settings: MasterSettings) -> None:
        """Raises ConfigError where its certificate can't be used."""
        self._settings = settings
        self._tls = page_tls(settings)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()

    def start(self, parts: MasterParts, authenticator: Authenticator | None = None) -> str:
        """Returns the address, http://host:port. To be called in the master's event loop. Raises RpcFailed where the
        port can't be had."""
        sock = _listen(self._settings.http_host, self._settings.http_port)
        host, port = sock.getsockname()[:2]
        gateway = Gateway(parts, asyncio.get_running_loop())
        self._thread = threading.Thread(
            target=self._run, args=(gateway, authenticator, sock), name="rest", daemon=True
        )
        self._thread.start()
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def _run(self, gateway: Gateway, authenticator: Authenticator | None, sock: socket.socket) -> None:
        try:
            asyncio.run(self._serve(gateway, authenticator, sock))
        except Exception:
            log.exception("the REST interface ended")
        finally:
            self._started.set()
            sock.close()

    async def _serve(
        self, gateway: Gateway, authenticator: Authenticator | None, sock: socket.socket
    ) -> None:
        import uvicorn

        from moonpool.master.rest.app import make_app
        from moonpool.master.ui.mount import mount_dashboard

        app = make_app(gateway, authenticator)
        if self._settings.dashboard:
            mount_dashboard(app)
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            backlog=BACKLOG,
        )
        server = uvicorn.Server(config) if self._tls is None else self._secure_server(config, self._tls)
        recording = asyncio.create_task(app.state.recorder.run(gateway))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        stopping.cancel()
        recording.cancel()
        await serving

    @staticmethod
    def _secure_server(config: uvicorn.Config, tls: ServerTls) -> uvicorn.Server:
        from moonpool.master.rest.secure_server import SecureServer

        return SecureServer(config, tls)

    def close(self) -> None:
        """Ends all requests. Blocks for some seconds at most."""
        if self._thread is None:
            return
        self._started.wait(CLOSE_WAIT_S)
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CLOSE_WAIT_S)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, target = resolve(host, port, socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(target)
            sock.listen(BACKLOG)  # from now on clients wait instead of failing
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise RpcFailed(peer=f"{host}:{port}", reason=f"cannot listen: {error}") from error
    return sock
