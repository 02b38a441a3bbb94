"""A listening socket before a TLS server: handshakes within a deadline, and no more of them than fit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from moonpool.schemas.errors import Unauthorized
from moonpool.schemas.framing import PUSH_ID, encode_frame
from moonpool.schemas.messages import Failed, encode
from moonpool.store_client.rpc.tls import HANDSHAKE_BYTE, ServerTls

log = logging.getLogger(__name__)

HANDSHAKES_MAX = 128
"""Under way at once. One more ends the oldest: who is honest needs milliseconds."""
PAUSE_S = 0.1
UNREAD_BYTES = 64 << 10
"""Taken off a socket before it is closed, or its peer may see a reset in the place of our last words."""


def refusal_of_plain_text() -> bytes:
    """What is said to somebody who comes without TLS."""
    error = Unauthorized(detail="this port speaks TLS: set tls_ca, and tls_cert with tls_key where it asks")
    return encode_frame(PUSH_ID, encode(Failed(error.code, str(error))))


class TlsListener:
    """Accepts connections and hands each to a protocol after its handshake. To be used in one event loop.

    Not the event loop's own TLS server: that one bounds neither handshakes nor what waits in them, keeps its first
    certificate for ever, and leaves those who speak no TLS without an answer.
    """

    def __init__(
        self,
        sock: socket.socket,
        tls: ServerTls,
        make: Callable[[], asyncio.Protocol],
        timeout_s: float,
        refusal: Callable[[], bytes] = refusal_of_plain_text,
    ) -> None:
        """`refusal`: what is said to somebody who comes without TLS."""
        self._sock = sock
        self._tls = tls
        self._make = make
        self._timeout_s = timeout_s
        self._refusal = refusal
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._acceptor = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Handshakes under way end. Connections that have passed live on."""
        tasks = [self._acceptor, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sock.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._sock)
            except OSError as error:  # out of descriptors: let some close
                log.error("accept failed: %s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                next(iter(self._handshakes)).cancel()
            task = loop.create_task(self._shake_hands(sock, f"{address[0]}:{address[1]}"))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _shake_hands(self, sock: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                await _readable(sock)
                first = sock.recv(1, socket.MSG_PEEK)
                if first and first[0] != HANDSHAKE_BYTE:
                    log.info("%s came without TLS", peer)
                    with contextlib.closing(sock), contextlib.suppress(OSError):
                        sock.send(self._refusal())
                        sock.recv(UNREAD_BYTES)
                    return
                await loop.connect_accepted_socket(
                    self._make, sock, ssl=self._tls.context(), ssl_handshake_timeout=self._timeout_s
                )
        except TimeoutError:
            log.info("no TLS handshake of %s within %g s", peer, self._timeout_s)
            sock.close()
        except OSError as error:  # ssl.SSLError is one
            log.info("TLS handshake of %s failed: %s", peer, getattr(error, "reason", None) or error)
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise


async def _readable(sock: socket.socket) -> None:
    """Until a byte has come, or the end."""
    loop = asyncio.get_running_loop()
    come: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not come.done():
            come.set_result(None)

    loop.add_reader(sock, ready)
    try:
        await come
    finally:
        loop.remove_reader(sock)
