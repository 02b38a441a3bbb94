"""The server's side of one connection: handshake, turns, back-pressure, and the end of bad peers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable
from functools import partial
from typing import Any, cast

import msgspec

from moonpool.schemas.errors import (
    InvalidParams,
    MoonpoolError,
    Overloaded,
    ProtocolError,
    TooLarge,
    Unauthorized,
    VersionMismatch,
)
from moonpool.schemas.framing import PROTOCOL_VERSION, PUSH_ID, Body, FrameReader, split_trace
from moonpool.schemas.messages import Failed, Hello, Message, encode
from moonpool.store_client.rpc.access import WITHDRAWN, Visitor
from moonpool.store_client.rpc.address import set_tcp_options
from moonpool.store_client.rpc.failures import failed
from moonpool.store_client.rpc.later import Later
from moonpool.store_client.rpc.near import arrived, comes_near
from moonpool.store_client.rpc.peer import Pending, older, printable
from moonpool.store_client.rpc.server_spans import CallSpan
from moonpool.store_client.rpc.service import Service
from moonpool.store_client.rpc.turn_writer import TurnWriter

log = logging.getLogger(__name__)

REFUSALS_MAX = 64
"""Connections over the limit that are told so; those beyond are cut without a word."""

_NOBODY = Hello(protocol=0, role="", client="")


class ServerConnection(asyncio.Protocol):
    """A Peer, see peer.py. Frames are answered in turns: a bounded number, then the other connections."""

    def __init__(self, service: Service) -> None:
        self.hello = _NOBODY
        self.name = "unknown peer"
        self.data: dict[str, Any] = {}
        self.near = False
        self._visitor = Visitor(service.access)
        self.identity = self._visitor.identity
        """See Peer."""
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(self.name)
        self._tasks: set[Pending | Later] = set()
        self._tasks_max = service.limits.inflight_max
        self._spans: dict[int, CallSpan] = {}  # of requests under way that name one
        self._greeted = False
        self._refused = False
        self._turn_due = False
        self._reading = True
        self._counted_bytes = 0
        # Moments since when the peer has kept us waiting; None: it doesn't.
        self._opened_s = time.monotonic()
        self._partial_since_s: float | None = None
        self._unread_since_s: float | None = None
        self._closing_since_s: float | None = None

    # ------------------------------------------------------------ what handlers use

    def push(self, message: Message) -> bool:
        """See Peer."""
        if self._closing_since_s is not None:
            return False
        if self._transport.get_write_buffer_size() > self._service.limits.push_bytes_max:
            self.abort("it doesn't read what is pushed to it")
            return False
        body = encode(message)
        if len(body) + 4 > self._service.limits.frame_bytes_max:
            what = type(message).__name__
            log.error("%s: a %s of %d bytes is too large to push", self._service.name, what, len(body))
            return False
        self._writer.write(PUSH_ID, body)
        return True

    def hear(self) -> None:
        """See Peer. Nor does it wait for unread replies, which the peer's own window bounds."""
        if self._writer.in_turn or self._closing_since_s is not None:
            return  # where only the transport is closing, what lies there can still be read
        data = arrived(self._transport.get_extra_info("socket"))
        if data or self._reader.pending:
            self._receive(data, whole=True)

    def close(self) -> None:
        """See Peer."""
        if self._closing_since_s is None:
            self._closing_since_s = time.monotonic()
            self._writer.flush()
            self._transport.close()

    # ------------------------------------------------------------ what the server uses

    def abort(self, reason: str) -> None:
        """Ends the connection now. What was written may be lost."""
        if self._closing_since_s is None:
            self._closing_since_s = time.monotonic()
            log.info("%s closes the connection of %s: %s", self._service.name, self.name, reason)
        self._transport.abort()

    def abort_if_stalled(self, now_s: float) -> None:
        """Called about once a second."""
        limits = self._service.limits
        if self._closing_since_s is not None:
            if now_s - self._closing_since_s > limits.handshake_timeout_s:
                self._transport.abort()
        elif not self._visitor.may_stay():
            withdrawn = Unauthorized(detail=WITHDRAWN)
            log.info("%s closes the connection of %s: %s", self._service.name, self.name, withdrawn)
            self._send(PUSH_ID, Failed(withdrawn.code, str(withdrawn)))
            self.close()
        elif not self._greeted and now_s - self._opened_s > limits.handshake_timeout_s:
            self.abort(f"no handshake within {limits.handshake_timeout_s:g} s")
        elif older(self._unread_since_s, now_s, limits.stall_timeout_s):
            self.abort(f"replies unread for {limits.stall_timeout_s:g} s")
        elif older(self._partial_since_s, now_s, limits.stall_timeout_s):
            self.abort(f"half a frame for {limits.stall_timeout_s:g} s")

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writer = TurnWriter(self._transport)
        service = self._service
        service.connections.add(self)
        self._name_peer()
        self._transport.set_write_buffer_limits(high=service.limits.write_bytes_max)
        surplus = len(service.connections) - service.limits.connections_max
        self._refused = surplus > 0
        if surplus > REFUSALS_MAX:
            self._closing_since_s = time.monotonic()
            self._transport.abort()

    def data_received(self, data: bytes = b"") -> None:
        """What has come, or what an earlier turn has left of it."""
        self._receive(data, whole=False)

    def _receive(self, data: bytes, *, whole: bool) -> None:
        """`whole`: all of it, however many turns that takes."""
        self._turn_due = False
        if self._closing_since_s is not None or (self._transport.is_closing() and not whole):
            return
        rest = False
        try:
            frame = self._reader.whole(data)
            if frame is not None:  # the usual case
                self._partial_since_s = None
                self._take(*frame)
            else:
                self._writer.in_turn = True
                rest = self._serve_all(data) if whole else self._serve(data)
        except ProtocolError as error:
            log.info("%s closes a connection: %s", self._service.name, error)
            self._send(PUSH_ID, Failed(error.code, str(error)))
            self.close()
            return
        finally:
            if self._writer.in_turn:
                self._writer.in_turn = False
                self._writer.flush()
        if frame is None and (self._counted_bytes or len(self._reader.pending)):
            self._count_buffered()
        # `_blocked`, without a call for what comes with each request
        if (
            rest
            or not self._reading
            or self._unread_since_s is not None
            or len(self._tasks) >= self._tasks_max
        ):
            self._plan(rest)

    def pause_writing(self) -> None:
        self._unread_since_s = time.monotonic()

    def resume_writing(self) -> None:
        self._unread_since_s = None
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.hello.role == "node" and self.near:
            self.hear()  # it has relied on that
        self._closing_since_s = self._closing_since_s or time.monotonic()
        self._service.connections.discard(self)
        self._count(0)
        for task in list(self._tasks):
            task.cancel()
        if self._greeted:
            try:
                self._service.handler.disconnected(self)
            except Exception:
                log.exception("%s failed on the end of %s", self._service.name, self.name)

    # ------------------------------------------------------------ turns

    @property
    def _blocked(self) -> bool:
        """Whether the peer must take replies, or requests must finish, before another one is begun."""
        return self._unread_since_s is not None or len(self._tasks) >= self._tasks_max

    def _serve(self, data: bytes) -> bool:
        """Answers frames until the turn is over. Returns whether there may be more of them."""
        limits = self._service.limits
        end_s = time.monotonic() + limits.turn_s
        count = 0
        with contextlib.closing(self._reader.feed(data)) as frames:
            for request_id, body in frames:
                self._take(request_id, body)
                count += 1
                if self._closing_since_s is not None:
                    return False
                if count >= limits.turn_frames or self._blocked or time.monotonic() > end_s:
                    self._partial_since_s = None
                    return True
        if not len(self._reader.pending):
            self._partial_since_s = None
        elif count or self._partial_since_s is None:
            self._partial_since_s = time.monotonic()
        return False

    def _serve_all(self, data: bytes) -> bool:
        """The same in as many turns as it takes."""
        for _ in range(self._service.limits.turns_heard):
            if not self._serve(data):
                return False
            data = b""
        self.abort("it has sent more at once than a node has under way")
        return False

    def _plan(self, rest: bool) -> None:
        """Reads on, or first serves the `rest` of what was read, or waits until `_wake`."""
        if self._closing_since_s is not None:
            return
        if rest and not self._blocked:
            self._wake()
        read = not rest and not self._blocked
        if read != self._reading and not self._transport.is_closing():
            self._reading = read
            if read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _wake(self) -> None:
        if not self._turn_due and not self._blocked and self._closing_since_s is None:
            self._turn_due = True
            self._loop.call_soon(self.data_received)

    def _count_buffered(self) -> None:
        """Where partial frames take too much memory, whoever holds most of it goes: not who came last."""
        service = self._service
        self._count(len(self._reader.pending))
        while service.buffered_bytes > service.limits.buffered_bytes_max:
            greediest = max(service.connections, key=lambda connection: connection._counted_bytes)
            greediest.abort("all connections together have too many bytes of partial frames")
            greediest._count(0)

    def _count(self, pending_bytes: int) -> None:
        self._service.buffered_bytes += pending_bytes - self._counted_bytes
        self._counted_bytes = pending_bytes

    # ------------------------------------------------------------ frames

    def _take(self, request_id: int, body: Body) -> None:
        if request_id == PUSH_ID:
            raise ProtocolError(peer=self.name, reason="a request with id 0")
        spans, parent = self._service.spans, ""
        try:
            if spans is not None:
                parent, body = split_trace(body)
            message = self._service.decode(body)
        except Exception as error:  # noqa: BLE001 - strange bytes make a decoder raise many things
            if not self._greeted:
                raise ProtocolError(peer=self.name, reason=f"no Hello but {error}") from None
            bad = InvalidParams(field="request", value=f"{len(body)} bytes", allowed=f"a message ({error})")
            self._send(request_id, Failed(bad.code, str(bad)))
            return
        if type(message) is Hello:
            self._greet(request_id, message)
            return
        kind = type(message)
        if not self._greeted:
            raise ProtocolError(peer=self.name, reason=f"{kind.__name__} before Hello")
        if parent and spans is not None:
            self._spans[request_id] = spans.begin(kind.__name__, parent, self.name)
        start_s = time.perf_counter()
        try:
            if kind not in self._visitor.allowed:
                self._visitor.check(kind)
            reply = self._service.handler.handle(message, self)
        except Exception as error:  # noqa: BLE001 - `failed` logs it
            self._answer(request_id, message, start_s, error)
            return
        if isinstance(reply, Message):
            self._answer(request_id, message, start_s, reply)
        elif isinstance(reply, Later):
            self._wait(request_id, message, start_s, reply)
        else:
            self._await(request_id, message, start_s, reply)

    def _greet(self, request_id: int, hello: Hello) -> None:
        service = self._service
        if self._greeted:
            raise ProtocolError(peer=self.name, reason="a second Hello")
        refusal: MoonpoolError | None = None
        if self._refused:
            what = f"the connection table of {service.name}"
            refusal = Overloaded(what=what, limit=service.limits.connections_max)
        elif hello.protocol != PROTOCOL_VERSION:
            refusal = VersionMismatch(ours=PROTOCOL_VERSION, theirs=hello.protocol)
        else:
            refusal = self._visitor.admit(hello)
        if refusal is not None:
            log.info("%s refuses %s: %s", service.name, self.name, refusal)
            self._send(request_id, Failed(refusal.code, str(refusal)))
            self.close()
            return
        self._greeted = True
        self.identity = self._visitor.identity
        self.hello = msgspec.structs.replace(hello, token="")
        self.name = f"{printable(hello.role)} {printable(hello.client)} ({self.name})"
        self._reader.limit_bytes = service.limits.frame_bytes_max
        self._send(request_id, service.welcome(self._transport.get_extra_info("socket")))
        service.handler.connected(self)

    def _await(self, request_id: int, message: Message, start_s: float, reply: Awaitable[Message]) -> None:
        task = asyncio.ensure_future(reply)  # a future needs no task, which costs as much as a small request
        self._tasks.add(task)
        self._service.tasks.add(task)
        task.add_done_callback(partial(self._finish, request_id, message, start_s))

    def _wait(self, request_id: int, message: Message, start_s: float, later: Later) -> None:
        def tell(reply: Message | Exception | None) -> None:
            self._tasks.discard(later)
            self._service.tasks.discard(later)
            if reply is not None:
                self._answer(request_id, message, start_s, reply)
            if not self._reading:
                self._wake()

        self._tasks.add(later)
        self._service.tasks.add(later)
        later.listen(tell)

    def _finish(self, request_id: int, message: Message, start_s: float, task: Pending) -> None:
        self._tasks.discard(task)
        self._service.tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            reply = error if isinstance(error, Exception) else task.result()
            self._answer(request_id, message, start_s, reply)
        if not self._reading:
            self._wake()

    def _answer(self, request_id: int, message: Message, start_s: float, reply: Message | Exception) -> None:
        failure = None
        if not isinstance(reply, Message):
            reply = failure = failed(self._service.name, message, self.name, reply)
        elif type(reply) is Failed:
            failure = reply
        self._send(request_id, reply)
        elapsed_s = time.perf_counter() - start_s
        self._service.timings.took(type(message).__name__, self.name, elapsed_s, failure is not None)
        if self._spans and (span := self._spans.pop(request_id, None)) is not None:
            span.end(failure.message if failure is not None else None)

    # ------------------------------------------------------------ writing

    def _send(self, request_id: int, message: Message) -> None:
        body = encode(message)
        size_bytes, limit_bytes = len(body), self._service.limits.frame_bytes_max
        if size_bytes + 4 > limit_bytes:
            error = TooLarge(what=type(message).__name__, size_bytes=size_bytes, limit_bytes=limit_bytes)
            body = encode(Failed(error.code, str(error)))
        self._writer.write(request_id, body)

    def _name_peer(self) -> None:
        sock = self._transport.get_extra_info("socket")
        self.near = comes_near(sock)
        self._visitor.look_at(self._transport, self._service.tls)
        if sock.family == socket.AF_UNIX:
            self.name = "unix socket"
        else:
            host, port = self._transport.get_extra_info("peername")[:2]
            self.name = f"{host}:{port}"
            set_tcp_options(sock)
        self._reader = FrameReader(self.name)
