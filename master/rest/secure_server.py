"""uvicorn behind our own TLS listener: uvicorn's keeps its first certificate for ever, and bounds no handshakes."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from moonpool.store_client.rpc.https import refusal_of_plain_http
from moonpool.store_client.rpc.tls import ServerTls
from moonpool.store_client.rpc.tls_listener import TlsListener

HANDSHAKE_TIMEOUT_S = 5.0


class SecureServer(uvicorn.Server):
    """Serves connections that come through TLS with the certificate as it is then."""

    def __init__(self, config: uvicorn.Config, tls: ServerTls) -> None:
        super().__init__(config)
        self._tls = tls
        self._listeners: list[TlsListener] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup([])
        for sock in sockets or []:
            sock.setblocking(False)
            listener = TlsListener(
                sock, self._tls, self._protocol, HANDSHAKE_TIMEOUT_S, refusal_of_plain_http
            )
            self._listeners.append(listener)

    def _protocol(self) -> asyncio.Protocol:
        make = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[call-arg]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        for listener in self._listeners:
            await listener.close()
        await super().shutdown(sockets)
