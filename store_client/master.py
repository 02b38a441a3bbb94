"""Calls to one master: deadline, circuit breaker, and keyspaces told again to a master that has lost them."""

from __future__ import annotations

import time
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
from moonpool.store_client.rpc.connection import ConnectionPool
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

    def ask(self, message: Message, reply: type[Reply], deadline_s: float) -> Reply:
        """The answer, of that type. Raises what the master answers, and Unreachable."""
        try:
            answer = self._call(message, deadline_s)
        except KeyspaceUnknown:
            specs = [spec for spec in map(self._book.find, _keyspaces_of(message)) if spec is not None]
            if not specs or isinstance(message, RegisterKeyspace):
                raise
            for spec in specs:
                self.register(spec, deadline_s)
            answer = self._call(message, deadline_s)
        if not isinstance(answer, reply):
            raise ProtocolError(
                peer=self.address, reason=f"{type(answer).__name__} in answer to {type(message).__name__}"
            )
        return answer

    def register(self, spec: KeyspaceSpec, deadline_s: float) -> bytes:
        """Makes a keyspace known."""
        return self.ask(RegisterKeyspace(spec), KeyspaceRegistered, deadline_s).keyspace

    def close(self) -> None:
        """Calls under way fail soon."""
        self._pool.close()

    def _call(self, message: Message, deadline_s: float) -> Message:
        with self._guard.call(time.monotonic()):
            return self._pool.call(message, deadline_s)


def _keyspaces_of(message: Message) -> list[bytes]:
    if isinstance(message, PutStart):
        return list(dict.fromkeys(item.keyspace for item in message.items))
    keyspace: bytes = getattr(message, "keyspace", b"")
    return [keyspace]
