"""The operator as the master's handler sees it: one more connection, which nothing is pushed to."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from moonpool.master.rest.parts import MasterParts
from moonpool.schemas.access import Identity
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import Hello, Message


class Operator:
    """A Peer (store_client/rpc/peer.py)."""

    def __init__(self, identity: Identity) -> None:
        self.hello = Hello(PROTOCOL_VERSION, "client", "rest", tenant=identity.tenant)
        self.identity = identity
        self.name = f"operator {identity.name}"
        self.data: dict[str, Any] = {}
        self.near = False

    def hear(self) -> None:
        """See Peer."""

    def push(self, message: Message) -> bool:
        """See Peer."""
        return False

    def close(self) -> None:
        """See Peer."""


async def tell(parts: MasterParts, identity: Identity, message: Message) -> Message:
    """The handler's answer. Raises what it raises."""
    answer = parts.handler.handle(message, Operator(identity))
    return await answer if isinstance(answer, Awaitable) else answer
