"""The pipelined asyncio client of a server: what a node speaks to its master with."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import cast

from moonpool.schemas.errors import (
    Closed,
    DeadlineExceeded,
    MoonpoolError,
    Overloaded,
    ProtocolError,
    RpcFailed,
    TooLarge,
    VersionMismatch,
    from_wire,
)
from moonpool.schemas.framing import FRAME_BYTES_MAX, PREFIX, PROTOCOL_VERSION, PUSH_ID, Body, FrameReader
from moonpool.schemas.messages import Failed, Hello, Message, Welcome, encode
from moonpool.store_client.rpc.address import Address, set_tcp_options
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.rpc.near import NEAR_TIMEOUT_S, check_same, near_address
from moonpool.store_client.rpc.tls import ClientTls, explain, explain_end

log = logging.getLogger(__name__)

UNSENT_BYTES_MAX = 32 << 20
ID_MASK = (1 << 32) - 1

Answered = Callable[[Message | MoonpoolError], None]
"""Told the reply (Failed where the server refused), or why there is none."""


async def _outlasted(answer: asyncio.Future[Message], late: Callable[[Message], None]) -> Message:
    """Goes on waiting where its caller does not, who may give up in the very moment in which the answer is there."""
    try:
        await asyncio.wait({answer})
    except asyncio.CancelledError:
        answer.add_done_callback(partial(_tell, late))
        raise
    return answer.result()


def _tell(late: Callable[[Message], None], answer: asyncio.Future[Message]) -> None:
    if not answer.cancelled() and answer.exception() is None:  # else the connection was lost
        late(answer.result())


class AsyncRpcConnection(asyncio.Protocol):
    """Many requests at once over one connection. Made by `connect`; once lost it stays so.

    `on_push` is called in the event loop with each message that is no reply.
    """

    def __init__(
        self,
        address: str,
        decode: Callable[[Body], Message],
        on_push: Callable[[Message], None] | None,
        inflight_max: int,
    ) -> None:
        self.address = address
        self.welcome: Welcome | None = None
        self.closed: asyncio.Future[MoonpoolError | None] = asyncio.get_running_loop().create_future()
        """Done when the connection is gone: the reason, or None after `close`."""
        self._decode = decode
        self._on_push = on_push
        self._inflight_max = inflight_max
        self._reader = FrameReader(address)
        self._waiting: dict[int, Answered] = {}
        self._last_id = 0
        self._reason: MoonpoolError | None = None
        self._closing = False

    @classmethod
    async def connect(
        cls,
        address: str,
        hello: Hello,
        decode: Callable[[Body], Message],
        *,
        timeout_s: float,
        on_push: Callable[[Message], None] | None = None,
        inflight_max: int = 1024,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> AsyncRpcConnection:
        """A connection after its handshake. Raises DeadlineExceeded, RpcFailed, ProtocolError, VersionMismatch or
        what the server refused it with. More than `inflight_max` requests at once are Overloaded."""
        end_s = time.monotonic() + timeout_s
        far = cls(address, decode, on_push, inflight_max)
        await far._open(Address.parse(address), hello, end_s, credentials)
        near = far._near_address()
        if near is None:
            return far
        nearer = cls(address, decode, on_push, inflight_max)
        try:
            until_s = min(end_s, time.monotonic() + NEAR_TIMEOUT_S)
            await nearer._open(near, hello, until_s, credentials, same_as=far.welcome)
        except MoonpoolError as error:
            log.info("%s is asked over tcp: its near door didn't open: %s", address, error)
            return far
        except BaseException:
            await far._abort()
            raise
        await far.close()
        return nearer

    def _near_address(self) -> Address | None:
        """Of the server's near door, where it has one for us."""
        if self.welcome is None or self._transport.get_extra_info("ssl_object") is not None:
            return None
        return near_address(self._transport.get_extra_info("socket"), self.welcome)

    async def _open(
        self,
        target: Address,
        hello: Hello,
        end_s: float,
        credentials: Credentials,
        same_as: Welcome | None = None,
    ) -> None:
        """Connects and shakes hands. `same_as`: of whom this must be the near door. Raises as `connect`."""
        address, tls, timeout_s = self.address, credentials.tls, end_s - time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                await self._dial(target, tls, timeout_s)
        except TimeoutError as error:
            raise DeadlineExceeded(peer=address, what="a connection", timeout_s=timeout_s) from error
        except OSError as error:
            if tls is not None and isinstance(error, ssl.SSLError | ConnectionError):
                raise explain(error, address) from error
            raise RpcFailed(peer=address, reason=str(error.strerror or error)) from error
        try:
            self._greet(await self.call(credentials.sign(hello), end_s - time.monotonic()), same_as)
        except RpcFailed as error:
            await self._abort()
            if tls is None:
                raise
            raise explain_end(ConnectionResetError(), address) from error
        except BaseException:
            await self._abort()
            raise

    async def _abort(self) -> None:
        self._transport.abort()
        await self.closed

    def send(self, message: Message) -> asyncio.Future[Message]:
        """`ask`, with a future of the reply, which raises where there is none. Cancelling it forgets the request. Raises as
        `ask`."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def answered(reply: Message | MoonpoolError) -> None:
            if future.done():
                return
            if isinstance(reply, MoonpoolError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        request_id = self.ask(message, answered)
        future.add_done_callback(lambda _: self._waiting.pop(request_id, None))
        return future

    def ask(self, message: Message, answered: Answered) -> int:
        """Writes a request now, behind all earlier ones. `answered` is called once, as soon as the reply has come or the
        connection is lost (RpcFailed, Closed). Returns its id.

        Raises Closed, Overloaded and TooLarge, nothing sent.
        """
        if self._closing:
            raise Closed(what=f"the connection to {self.address}")
        if len(self._waiting) >= self._inflight_max:
            raise Overloaded(what=f"the connection to {self.address}", limit=self._inflight_max)
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            raise Overloaded(what=f"the send buffer to {self.address}", limit=UNSENT_BYTES_MAX)
        body = encode(message)
        limit_bytes = (
            min(self.welcome.frame_bytes_max if self.welcome else FRAME_BYTES_MAX, FRAME_BYTES_MAX) - 4
        )
        if len(body) > limit_bytes:
            what = type(message).__name__
            raise TooLarge(what=what, size_bytes=len(body), limit_bytes=limit_bytes)
        self._last_id = request_id = (self._last_id & (ID_MASK >> 1)) + 1
        self._waiting[request_id] = answered
        self._transport.write(PREFIX.pack(4 + len(body), request_id) + body)
        return request_id

    @property
    def all_sent(self) -> bool:
        """Whether the kernel has taken all requests. What can't be sent any more is thrown away, and was not."""
        return not self._transport.get_write_buffer_size() and not self._transport.is_closing()

    async def call(
        self, message: Message, timeout_s: float, late: Callable[[Message], None] | None = None
    ) -> Message:
        """The reply to one request. Raises what the server answered with Failed; DeadlineExceeded, after which the
        connection lives on and a late reply is dropped, or given to `late`; RpcFailed; and what `send` raises."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = self.send(message)
                reply = await (answer if late is None else _outlasted(answer, late))
        except TimeoutError as error:
            what = type(message).__name__
            raise DeadlineExceeded(peer=self.address, what=what, timeout_s=max(0.0, timeout_s)) from error
        if isinstance(reply, Failed):
            raise from_wire(reply.code, reply.message)
        return reply

    async def close(self) -> None:
        """Requests under way fail with Closed."""
        if not self._closing:
            self._closing = True
            self._transport.abort()
        await self.closed

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            frame = self._reader.whole(data)
            for request_id, body in self._reader.feed(data) if frame is None else (frame,):
                self._take(request_id, body)
        except ProtocolError as error:
            self._reason = error
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._reason
        if reason is None and not self._closing:
            reason = RpcFailed(peer=self.address, reason=str(exc or "the server closed the connection"))
        self._closing = True
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(reason or Closed(what=f"the connection to {self.address}"))
        self.closed.set_result(reason)

    def _take(self, request_id: int, body: Body) -> None:
        try:
            message = self._decode(body)
        except Exception as error:  # strange bytes make a decoder raise many things
            raise ProtocolError(peer=self.address, reason=f"a reply that isn't one: {error}") from error
        if request_id == PUSH_ID:
            if isinstance(message, Failed):  # says why the server closes
                self._reason = from_wire(message.code, message.message)
            elif self._on_push is not None:
                self._on_push(message)
            return
        answered = self._waiting.pop(request_id, None)
        if answered is not None:
            answered(message)

    async def _dial(self, address: Address, tls: ClientTls | None, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        if address.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:  # not by the path itself: uvloop knows of no abstract names
                sock.setblocking(False)
                await loop.sock_connect(sock, address.path)
                await loop.create_unix_connection(lambda: self, sock=sock)
            except BaseException:
                sock.close()
                raise
            return
        if tls is None:
            await loop.create_connection(lambda: self, address.host, address.port)
        else:
            await loop.create_connection(
                lambda: self,
                address.host,
                address.port,
                ssl=tls.context(),
                server_hostname=address.host,
                ssl_handshake_timeout=timeout_s,
            )
        set_tcp_options(self._transport.get_extra_info("socket"))

    def _greet(self, welcome: Message, same_as: Welcome | None) -> None:
        if not isinstance(welcome, Welcome):
            raise ProtocolError(peer=self.address, reason=f"{type(welcome).__name__} in answer to Hello")
        if welcome.protocol != PROTOCOL_VERSION:
            raise VersionMismatch(ours=PROTOCOL_VERSION, theirs=welcome.protocol)
        check_same(self.address, welcome, same_as)
        self.welcome = welcome
        self._reader.limit_bytes = FRAME_BYTES_MAX
