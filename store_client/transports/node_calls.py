"""Calls of a session to the node of its host; what a restarted node has forgotten is told it again, once."""

from __future__ import annotations

from collections.abc import Generator

from moonpool.schemas.errors import KeyspaceUnknown, MoonpoolError, NotFound
from moonpool.schemas.messages import Begin, Message, PutAhead, RegisterKeyspace
from moonpool.store_client.rpc.connection_pool import ConnectionPool
from moonpool.store_client.transports.base import SpecOf
from moonpool.store_client.transports.session import Session


class NodeCalls:
    """Thread-safe."""

    def __init__(self, node: ConnectionPool, session: Session, spec_of: SpecOf) -> None:
        self._node = node
        self._session = session
        self._spec_of = spec_of

    def exchange(
        self, message: Message, deadline_s: float, overlapped: bool
    ) -> Generator[None, None, Message]:
        """A call to the node; what a restarted node has forgotten is told it again, once. `overlapped`: stops once it is
        sent."""
        if not overlapped:
            return self.call(message, deadline_s)
        try:
            pending = self._node.begin(message, deadline_s)
            try:
                yield
            except BaseException:
                pending.abandon()
                raise
            return pending.finish(deadline_s)
        except (KeyspaceUnknown, NotFound) as error:
            return self._repeat(message, error, deadline_s)

    def call(self, message: Message, deadline_s: float) -> Message:
        """The same where nothing else goes on meanwhile."""
        try:
            return self._node.call(message, deadline_s)
        except (KeyspaceUnknown, NotFound) as error:
            return self._repeat(message, error, deadline_s)

    def _repeat(self, message: Message, error: MoonpoolError, deadline_s: float) -> Message:
        if isinstance(error, NotFound):
            self._session.reopen(deadline_s)
        else:
            items = message.items if isinstance(message, Begin) else []
            for item in [message.item] if isinstance(message, PutAhead) else items:
                self._register_keyspace(item.keyspace, deadline_s)
        return self._node.call(message, deadline_s)

    def _register_keyspace(self, keyspace: bytes, deadline_s: float) -> None:
        spec = self._spec_of(keyspace)
        if spec is None:
            raise KeyspaceUnknown(keyspace=keyspace.hex())
        self._node.call(RegisterKeyspace(spec), deadline_s)
