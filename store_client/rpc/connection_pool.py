"""A pool of blocking connections to one server, for many threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from moonpool.schemas.errors import Closed, DeadlineExceeded, RpcFailed, UsedAfterFork
from moonpool.schemas.framing import Body
from moonpool.schemas.messages import Hello, Message, Welcome
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials


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
