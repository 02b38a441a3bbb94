"""Bounds of the HTTP server: requests at once, bytes of a body, seconds of an answer."""

from __future__ import annotations

import asyncio

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moonpool.master.rest.failures import document, status_of
from moonpool.schemas.errors import DeadlineExceeded, MoonpoolError, Overloaded, TooLarge

REQUESTS_MAX = 64
STREAMS_MAX = 64
BODY_BYTES_MAX = 2 << 20
ANSWER_TIMEOUT_S = 30.0
STREAMS = "/api/v1/events/stream"
"""Its answers have no end."""
OTHERS = "/ui"
"""What keeps its own bounds: a dashboard mounted there."""


class LimitsMiddleware:
    """ASGI: whatever passes a bound is answered at once, in the shape of all errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._requests = 0
        self._streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"].startswith(OTHERS):
            await self._app(scope, receive, send)
        elif scope["path"].startswith(STREAMS):
            if self._streams >= STREAMS_MAX:
                await _refuse(scope, receive, send, Overloaded(what="the list of streams", limit=STREAMS_MAX))
                return
            self._streams += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._streams -= 1
        elif self._requests >= REQUESTS_MAX:
            await _refuse(
                scope, receive, send, Overloaded(what="the list of HTTP requests", limit=REQUESTS_MAX)
            )
        else:
            self._requests += 1
            try:
                await _bounded(self._app, scope, receive, send)
            finally:
                self._requests -= 1


async def _bounded(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    body: bytes | None = b""
    given = started = False

    async def receive_body() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def note_start(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            body = await _read_body(receive)
            if body is None:
                size = f"over {BODY_BYTES_MAX}"
                error: MoonpoolError = TooLarge(what="the body", size_bytes=size, limit_bytes=BODY_BYTES_MAX)
                await _refuse(scope, receive, send, error)
                return
            await app(scope, receive_body, note_start)
    except TimeoutError:
        if not started:
            error = DeadlineExceeded(peer="the master", what="a request", timeout_s=ANSWER_TIMEOUT_S)
            await _refuse(scope, receive, send, error)


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body; None where it is too large."""
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":  # the client has gone
            return b""
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > BODY_BYTES_MAX:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


async def _refuse(scope: Scope, receive: Receive, send: Send, error: MoonpoolError) -> None:
    await JSONResponse(document(error), status_of(error))(scope, receive, send)
