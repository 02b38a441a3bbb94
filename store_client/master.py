"""Calls to one master: deadline, circuit breaker, and keyspaces told again to a master that has lost them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TypeVar

from moonpool.schemas.errors import KeyspaceUnknown, ProtocolError
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import (
    Hello,
    KeyspaceRegistered,
    Message,
    PutStart,
    RegisterKeyspace,
    decode_from_master,
)
from moonpool.store_client.guard import Guard
from moonpool.store_client.keyspaces import KeyspaceBook
from moonpool.store_client.rpc.connection_pool import ConnectionPool, PendingReply
from moonpool.store_client.rpc.credentials import Credentials

Reply = TypeVar("Reply", bound=Message)


class MasterLink:
    """One master, for any number of threads."""

    def __init__(
        self, address: str, hello: Hello, book: KeyspaceBook, retry_s: float, credentials: Credentials
    ) -> None:
        self.address = address
        self._pool = ConnectionPool(address, hello, decode_from_master, credentials=credentials)
        self._book = book
        self._guard = Guard(address, retry_s)

    @property
    def failed(self) -> bool:
        """Whether it failed lately, and hasn't answered since."""
        return self._guard.open

    def ask(self, message: Message, reply: type[Reply], deadline_s: float) -> Reply:
        """The answer, of that type. Raises what the master answers, and Unreachable."""
        try:
            answer = self._guard.ask(self._pool.call, message, deadline_s)
        except KeyspaceUnknown:
            answer = self._tell_and_call(message, deadline_s)
        if not isinstance(answer, reply):
            reason = f"{type(answer).__name__} in answer to {type(message).__name__}"
            raise ProtocolError(peer=self.address, reason=reason)
        return answer

    def begin(self, message: Message, deadline_s: float) -> Asked:
        """Sends a request; whoever begins several waits for all of them at once. Raises Unreachable."""
        guard = self._guard.call(time.monotonic())
        with ExitStack() as stack:
            stack.enter_context(guard)
            pending = self._pool.begin(message, deadline_s)
            return Asked(self, message, pending, stack.pop_all())

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent without connecting first."""
        return self._pool.is_open

    def _tell_and_call(self, message: Message, deadline_s: float) -> Message:
        """Once more, after telling the keyspaces. Raises KeyspaceUnknown where there is none to tell."""
        specs = [spec for spec in map(self._book.find, _keyspaces_of(message)) if spec is not None]
        if not specs or isinstance(message, RegisterKeyspace):
            raise KeyspaceUnknown(keyspace=", ".join(one.hex() for one in _keyspaces_of(message)))
        for spec in specs:
            self.register(spec, deadline_s)
        return self._guard.ask(self._pool.call, message, deadline_s)

    def register(self, spec: KeyspaceSpec, deadline_s: float) -> bytes:
        """Makes a keyspace known."""
        return self.ask(RegisterKeyspace(spec), KeyspaceRegistered, deadline_s).keyspace

    def close(self) -> None:
        """Calls under way fail soon."""
        self._pool.close()


class Asked:
    """A request on its way to a master. To be finished or abandoned, once, by the thread that began it."""

    def __init__(self, link: MasterLink, message: Message, pending: PendingReply, guard: ExitStack) -> None:
        self._link = link
        self._message = message
        self._pending = pending
        self._guard = guard

    def fileno(self) -> int:
        """Readable when something has come; -1: nothing will."""
        return self._pending.fileno()

    def finish(self, deadline_s: float) -> Message:
        """The answer. Raises as MasterLink.ask."""
        try:
            with self._guard:
                return self._pending.finish(deadline_s)
        except KeyspaceUnknown:
            return self._link._tell_and_call(self._message, deadline_s)

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self._pending.abandon()
        self._guard.close()


def _keyspaces_of(message: Message) -> list[bytes]:
    if isinstance(message, PutStart):
        return list(dict.fromkeys(item.keyspace for item in message.items))
    keyspace: bytes = getattr(message, "keyspace", b"")
    return [keyspace]
