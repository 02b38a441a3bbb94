"""The blocking client of a server: one connection."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable

from moonpool.schemas.errors import (
    DeadlineExceeded,
    MoonpoolError,
    ProtocolError,
    RpcFailed,
    TooLarge,
    UsedAfterFork,
    VersionMismatch,
    from_wire,
)
from moonpool.schemas.framing import (
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    PUSH_ID,
    Body,
    with_trace,
)
from moonpool.schemas.messages import Failed, Hello, Message, Welcome, encode
from moonpool.store_client.rpc.address import Address, dial
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.rpc.near import NEAR_TIMEOUT_S, check_same, near_address
from moonpool.store_client.rpc.tls import explain_end
from moonpool.store_client.rpc.wire import Wire
from moonpool.store_client.tracing import traceparent

log = logging.getLogger(__name__)

ID_MASK = (1 << 32) - 1


class RpcConnection:
    """One request at a time. Connects at the first call, and anew at the first call after a failure.

    Not thread-safe, apart from `interrupt`.
    """

    def __init__(
        self,
        address: str,
        hello: Hello,
        decode: Callable[[Body], Message],
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self.address = address
        self._credentials = credentials
        self.welcome: Welcome | None = None
        """What the server last said of itself."""
        self.unanswered = False
        """Whether the last call failed before a byte of its reply had come."""
        self.was_open = False
        """Whether the last call needed no handshake."""
        self._target = Address.parse(address)
        self._hello = hello
        self._decode = decode
        self._wire: Wire | None = None
        self._body_bytes_max = self._plain_bytes_max = -1
        """Bodies up to here go as they are: none, where the server wants spans with them."""
        self._last_id = 0
        self._began_s = 0.0
        self._pid = os.getpid()

    @property
    def is_open(self) -> bool:
        """Whether the next call needs no handshake."""
        return self._wire is not None

    def call(self, message: Message, deadline_s: float) -> Message:
        """The reply. `deadline_s` is time.monotonic() and covers connecting, sending and receiving.

        Raises what the server answered with Failed; DeadlineExceeded; RpcFailed; ProtocolError; TooLarge.
        """
        self.check_fork()
        return self.exchange(message, deadline_s)

    def exchange(self, message: Message, deadline_s: float) -> Message:
        """`call`, of who has made sure that this process is no fork. All in one place: each step costs every call."""
        self._began_s = time.monotonic()
        wire = self._wire
        self.was_open, self.unanswered = wire is not None, True
        try:
            if wire is None:
                wire = self._connect(deadline_s)
            body = encode(message)
            if len(body) > self._plain_bytes_max:
                body = self._checked(message, body)
            sent_id = self._next_id()
            reply_id, came = wire.exchange(sent_id, body, deadline_s)
            try:
                reply = self._decode(came)
            except Exception as error:
                raise self._strange(error) from error
            if reply_id != sent_id:
                reply = self._reply(wire, (reply_id, came), deadline_s)
        except TooLarge:  # nothing was sent
            raise
        except BaseException as error:
            raise self._broken(error, message, deadline_s) from error
        return _answer(reply) if type(reply) is Failed else reply

    def check_fork(self) -> None:
        """Raises UsedAfterFork."""
        if os.getpid() != self._pid:
            raise UsedAfterFork(what=f"the connection to {self.address}", pid=self._pid)

    def begin(self, message: Message, deadline_s: float) -> None:
        """The first half of a call: connects where that is needed, and sends. Raises as `call`."""
        self.check_fork()
        self._began_s = time.monotonic()
        self.was_open, self.unanswered = self._wire is not None, True
        try:
            wire = self._wire or self._connect(deadline_s)
            body = self._checked(message, encode(message))
            wire.send(self._next_id(), body, deadline_s)
        except TooLarge:
            raise
        except BaseException as error:
            raise self._broken(error, message, deadline_s) from error

    def finish(self, message: Message, deadline_s: float) -> Message:
        """The second half: the reply to `message`, which was begun. Raises as `call`."""
        try:
            if self._wire is None:
                raise ConnectionResetError("the connection was closed")
            reply = self._reply(self._wire, self._wire.receive(deadline_s), deadline_s)
        except BaseException as error:
            raise self._broken(error, message, deadline_s) from error
        return _answer(reply)

    def _broken(self, error: BaseException, message: Message, deadline_s: float) -> BaseException:
        """Closes: after a KeyboardInterrupt too the reply may still come, and must not be taken for another's."""
        self.unanswered = self._wire is None or not self._wire.heard
        self.close()
        if isinstance(error, OSError):
            return self._explain(error, message, deadline_s - self._began_s)
        return error

    def fileno(self) -> int:
        """Of the socket, for who waits for several; -1 where it is closed."""
        return -1 if self._wire is None else self._wire.fileno()

    def interrupt(self) -> None:
        """Makes a call that another thread has under way fail soon."""
        wire = self._wire
        if wire is not None:
            wire.interrupt()

    def close(self) -> None:
        """Closes the socket; a later call would connect again."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _connect(self, deadline_s: float) -> Wire:
        plain = dial(self._target, deadline_s)
        sock = self._credentials.secure(plain, self._target, deadline_s)
        self._wire = wire = Wire(sock, self.address)
        try:
            self.welcome = self._greet(wire, deadline_s)
            near = None if wire.secured else near_address(sock, self.welcome)
            if near is not None:
                wire = self._move(wire, self.welcome, near, deadline_s)
        except BaseException:
            self.close()
            raise
        wire.reader.limit_bytes = FRAME_BYTES_MAX
        self._body_bytes_max = min(self.welcome.frame_bytes_max, FRAME_BYTES_MAX) - 4
        self._plain_bytes_max = -1 if self.welcome.traces else self._body_bytes_max
        return wire

    def _move(self, far: Wire, welcome: Welcome, near: Address, deadline_s: float) -> Wire:
        """To the server's near door; where that doesn't open, all stays as it is."""
        try:
            until_s = min(deadline_s, time.monotonic() + NEAR_TIMEOUT_S)
            wire = Wire(dial(near, until_s), self.address)
        except OSError:
            return far
        self._wire = wire
        try:
            nearer = self._greet(wire, until_s)
            check_same(self.address, nearer, welcome)
        except (OSError, MoonpoolError) as error:
            log.info("%s is asked over tcp: its near door didn't open: %s", self.address, error)
            self._wire = far
            wire.close()
            return far
        except BaseException:
            far.close()
            raise
        far.close()
        self.welcome = nearer
        return wire

    def _greet(self, wire: Wire, deadline_s: float) -> Welcome:
        try:
            hello = encode(self._credentials.sign(self._hello))
            reply = self._reply(wire, wire.exchange(self._next_id(), hello, deadline_s), deadline_s)
        except (ssl.SSLError, ConnectionError) as error:
            if not wire.secured:
                raise
            raise explain_end(error, self.address) from error
        _answer(reply)
        if not isinstance(reply, Welcome):
            raise ProtocolError(peer=self.address, reason=f"{type(reply).__name__} in answer to Hello")
        if reply.protocol != PROTOCOL_VERSION:
            raise VersionMismatch(ours=PROTOCOL_VERSION, theirs=reply.protocol)
        return reply

    def _reply(self, wire: Wire, frame: tuple[int, Body], deadline_s: float) -> Message:
        """What the frame, or one of those behind it, says to the request that was sent last."""
        while True:
            reply_id, body = frame
            try:
                reply = self._decode(body)
            except Exception as error:  # strange bytes make a decoder raise many things
                raise self._strange(error) from error
            # Failed with id 0 says why the server closes; other pushes are for those who asked for them.
            if reply_id == self._last_id or (reply_id == PUSH_ID and isinstance(reply, Failed)):
                return reply
            if reply_id != PUSH_ID:
                reason = f"reply {reply_id} to request {self._last_id}"
                raise ProtocolError(peer=self.address, reason=reason)
            frame = wire.receive(deadline_s)

    def _strange(self, error: Exception) -> ProtocolError:
        return ProtocolError(peer=self.address, reason=f"a reply that isn't one: {error}")

    def _checked(self, message: Message, body: bytes) -> bytes:
        """With its span, where the server makes spans. Raises TooLarge."""
        assert self.welcome is not None
        if self.welcome.traces:
            body = with_trace(traceparent.get(), body)
        if len(body) > self._body_bytes_max:
            what = type(message).__name__
            raise TooLarge(what=what, size_bytes=len(body), limit_bytes=self._body_bytes_max)
        return body

    def _next_id(self) -> int:
        self._last_id = (self._last_id & (ID_MASK >> 1)) + 1
        return self._last_id

    def _explain(self, error: OSError, message: Message, timeout_s: float) -> MoonpoolError:
        what = type(message).__name__
        if isinstance(error, TimeoutError):
            return DeadlineExceeded(peer=self.address, what=what, timeout_s=max(0.0, timeout_s))
        return RpcFailed(peer=self.address, reason=f"{what}: {error.strerror or error}")


def _answer(reply: Message) -> Message:
    """Raises what the server answered with Failed."""
    if isinstance(reply, Failed):
        raise from_wire(reply.code, reply.message)
    return reply
