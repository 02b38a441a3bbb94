"""The blocking client of a server: one connection, and a pool of them for many threads."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable

from moonpool.schemas.errors import (
    Closed,
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
from moonpool.store_client.rpc.tls import explain_end
from moonpool.store_client.rpc.wire import Wire
from moonpool.store_client.tracing import traceparent

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
        except BaseException:
            self.close()
            raise
        wire.reader.limit_bytes = FRAME_BYTES_MAX
        self._body_bytes_max = min(self.welcome.frame_bytes_max, FRAME_BYTES_MAX) - 4
        self._plain_bytes_max = -1 if self.welcome.traces else self._body_bytes_max
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


class ConnectionPool:
    """Connections to one server for any number of threads; at most `size_max` calls are under way at once."""

    def __init__(
        self,
        address: str,
        hello: Hello,
        decode: Callable[[Body], Message],
        size_max: int = 8,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self.address = address
        self._credentials = credentials
        self._hello = hello
        self._decode = decode
        self._size_max = size_max
        self._all = [self._make()]  # here, so that a bad address is told at once
        self._free = list(self._all)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # a connection is free, or the pool closed
        self._waiting = 0
        self._closed = False
        self._pid = os.getpid()
        self.welcome: Welcome | None = None
        """What the server last said of itself, on any connection."""

    def call(self, message: Message, deadline_s: float) -> Message:
        """As RpcConnection.call, from any thread. Raises also Closed and UsedAfterFork.

        A connection that the server closed while it lay idle (a restart) costs one more try on a fresh one.
        The request may then have been carried out twice: ours can all be repeated.
        """
        connection = self._take(message, deadline_s)
        try:
            try:
                return connection.exchange(message, deadline_s)
            except RpcFailed:
                if not (connection.was_open and self.may_repeat(connection)):
                    raise
                return connection.exchange(message, deadline_s)
        finally:
            self._give_back(connection)

    def begin(self, message: Message, deadline_s: float) -> PendingReply:
        """Sends; the reply is waited for later, by the same thread. Raises as `call`."""
        connection = self._take(message, deadline_s)
        pending = PendingReply(self, connection, message)
        try:
            try:
                connection.begin(message, deadline_s)
            except RpcFailed:
                if not pending.may_repeat():
                    raise
                connection.begin(message, deadline_s)
        except BaseException:
            self._give_back(connection)
            raise
        return pending

    @property
    def is_open(self) -> bool:
        """Whether the next call is likely to need no handshake."""
        return bool(self._free) and self._free[-1].is_open

    def close(self) -> None:
        """Calls under way fail soon. In a forked child this only frees the descriptors."""
        if os.getpid() != self._pid:
            for connection in self._all:
                connection.close()
            return
        with self._lock:
            self._closed = True
            for connection in self._all:
                connection.interrupt()
            self._changed.notify_all()
        self._close_free()

    def _take(self, message: Message, deadline_s: float) -> RpcConnection:
        if os.getpid() != self._pid:
            raise UsedAfterFork(what=f"the connection pool of {self.address}", pid=self._pid)
        start_s = 0.0
        with self._lock:
            while not self._closed:
                if self._free:
                    return self._free.pop()  # the last one used: its socket is the likeliest to be alive
                if len(self._all) < self._size_max:
                    self._all.append(self._make())
                    return self._all[-1]
                start_s = start_s or time.monotonic()
                self._waiting += 1
                given = self._changed.wait(max(0.0, deadline_s - time.monotonic()))
                self._waiting -= 1
                if not given:
                    what = f"{type(message).__name__} ({self._size_max} calls are waiting already)"
                    raise DeadlineExceeded(peer=self.address, what=what, timeout_s=deadline_s - start_s)
        raise Closed(what=f"the connection pool of {self.address}")

    def _give_back(self, connection: RpcConnection) -> None:
        with self._lock:
            if self._closed:
                connection.close()
            self.welcome = connection.welcome or self.welcome
            self._free.append(connection)
            if self._waiting:
                self._changed.notify()

    def may_repeat(self, connection: RpcConnection) -> bool:
        """Of one that was open: whether the server had closed it while it lay idle. Then all idle ones are closed."""
        if self._closed or not connection.unanswered:
            return False
        self._close_free()
        return True

    def _make(self) -> RpcConnection:
        return RpcConnection(self.address, self._hello, self._decode, self._credentials)

    def _close_free(self) -> None:
        with self._lock:
            for connection in self._free:
                connection.close()


class PendingReply:
    """A request that was sent. To be finished or abandoned, once, by the thread that began it."""

    def __init__(self, pool: ConnectionPool, connection: RpcConnection, message: Message) -> None:
        self._pool = pool
        self._connection = connection
        self._message = message
        self._was_open = connection.is_open

    def fileno(self) -> int:
        """Readable when something has come; -1: nothing will."""
        return self._connection.fileno()

    def finish(self, deadline_s: float) -> Message:
        """As ConnectionPool.call."""
        try:
            try:
                return self._connection.finish(self._message, deadline_s)
            except RpcFailed:
                if not self.may_repeat():
                    raise
                return self._connection.call(self._message, deadline_s)
        finally:
            self._pool._give_back(self._connection)

    def abandon(self) -> None:
        """The reply isn't waited for."""
        self._connection.close()
        self._pool._give_back(self._connection)

    def may_repeat(self) -> bool:
        """Whether the server had closed the connection while it lay idle. Then all idle ones are closed."""
        was_open, self._was_open = self._was_open, False
        return was_open and self._pool.may_repeat(self._connection)
