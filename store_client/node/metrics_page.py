"""`/metrics` of a node: a small HTTP server in threads of its own."""

from __future__ import annotations

import importlib.util
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as NoAnswer
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any

from moonpool.schemas.access import Authenticator
from moonpool.schemas.errors import RpcFailed
from moonpool.schemas.metrics import Samples
from moonpool.store_client.rpc.address import resolve
from moonpool.store_client.rpc.https import refusal_of_plain_http
from moonpool.store_client.rpc.tls import HANDSHAKE_BYTE, ServerTls, cut

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 5.0
VISITORS_MAX = 8
GIVE_WAY_S = 1.0
UNREAD_BYTES = 64 << 10
"""Taken off a socket before it is closed, or its peer may see a reset in the place of our last words."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server_version = "moonpool"
    sys_version = ""
    look: Callable[[], Samples]
    tokens: Authenticator | None

    def do_GET(self) -> None:
        from moonpool.store_client.exposition import render

        if not self._may_look():
            self.send_response(401)
            self.send_header("www-authenticate", "Bearer")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        try:
            samples = type(self).look()
        except (NoAnswer, RuntimeError):  # RuntimeError: the loop has ended
            self.send_error(503)
            return
        page, content_type = render(samples, self.headers.get("accept", ""))
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def _may_look(self) -> bool:
        if self.tokens is None:
            return True
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        identity = self.tokens.authenticate(token.strip()) if scheme.lower() == "bearer" else None
        return identity is not None and identity.sees_all

    def log_message(self, format: str, *args: object) -> None:
        """None a request."""


class _Server(TCPServer):
    """Not HTTPServer, which asks a name server for this host's name. Each visitor has a thread; where there are
    VISITORS_MAX of them, the one that has been there longest gives way: a scrape takes milliseconds, so that one hangs."""

    allow_reuse_address = True
    tls: ServerTls | None = None

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._changed = threading.Condition()
        self._visitors: dict[threading.Thread, socket.socket] = {}  # oldest first
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called in the thread that accepts."""
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="metrics", daemon=True
        )
        with self._changed:
            if len(self._visitors) >= VISITORS_MAX:
                cut(next(iter(self._visitors.values())))
                self._changed.wait_for(lambda: len(self._visitors) < VISITORS_MAX, GIVE_WAY_S)
            if len(self._visitors) < VISITORS_MAX:
                self._visitors[thread] = request
                thread.start()
                return
        self.shutdown_request(request)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:  # noqa: BLE001 # a visitor can make many things fail, but only its own thread
            self.handle_error(request, client_address)
        finally:
            with self._changed:
                del self._visitors[threading.current_thread()]
                self._changed.notify_all()
            self.shutdown_request(request)

    def end_visitors(self) -> None:
        """Ends all, and waits for their threads."""
        with self._changed:
            visitors = dict(self._visitors)
            for visitor in visitors.values():
                cut(visitor)
        for thread in visitors:
            thread.join()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """After the TLS handshake, where there is one."""
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(REQUEST_TIMEOUT_S)
        first = request.recv(1, socket.MSG_PEEK)
        if first and first[0] != HANDSHAKE_BYTE:
            request.sendall(refusal_of_plain_http())
            request.recv(UNREAD_BYTES)
            return
        with self.tls.wrap(request) as secured:
            with self._changed:
                self._visitors[threading.current_thread()] = secured
            secured.do_handshake()
            super().finish_request(secured, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked has gone, or said nothing."""
        log.debug("a request for metrics from %s failed", client_address)


class MetricsPage:
    """Serves a few visitors at a time until `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        look: Callable[[], Samples],
        tokens: Authenticator | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """`look` is called in threads of this page. Raises RpcFailed where the port can't be had."""
        handler = type("Handler", (_Handler,), {"look": staticmethod(look), "tokens": tokens})
        try:
            _Server.address_family = resolve(host, port)[0][0]
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise RpcFailed(peer=f"{host}:{port}", reason=f"cannot listen: {error}") from error
        self._server.tls = tls
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends requests under way."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.end_visitors()


def open_page(
    host: str,
    port: int,
    look: Callable[[], Samples],
    tokens: Authenticator | None = None,
    tls: ServerTls | None = None,
) -> MetricsPage | None:
    """None where prometheus_client is missing: the log says so, and the node goes on without."""
    if importlib.util.find_spec("prometheus_client") is None:
        log.warning("no /metrics: prometheus_client is not installed (extra `master`)")
        return None
    page = MetricsPage(host, port, look, tokens, tls)
    log.info("metrics at %s://%s:%d/metrics", "http" if tls is None else "https", host, page.port)
    return page
