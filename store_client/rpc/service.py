"""What all connections of one server share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moonpool import __version__
from moonpool.schemas.framing import PROTOCOL_VERSION, Body
from moonpool.schemas.messages import Message, Welcome
from moonpool.store_client.rpc.access import Access
from moonpool.store_client.rpc.later import Later
from moonpool.store_client.rpc.near import NearDoor, comes_near, is_within_host
from moonpool.store_client.rpc.peer import Handler, Limits, Pending
from moonpool.store_client.rpc.server_spans import ServerSpans
from moonpool.store_client.rpc.timings import CallTimings
from moonpool.store_client.rpc.tls import ServerTls

if TYPE_CHECKING:
    from moonpool.store_client.rpc.server_connection import ServerConnection


@dataclass(slots=True)
class Service:
    """Of one server. `tasks`: requests under way."""

    handler: Handler
    decode: Callable[[Body], Message]
    name: str
    limits: Limits
    access: Access = field(default_factory=Access)
    tls: ServerTls | None = None
    spans: ServerSpans | None = None
    near: NearDoor | None = None
    connections: set[ServerConnection] = field(default_factory=set)
    tasks: set[Pending | Later] = field(default_factory=set)
    buffered_bytes: int = 0
    timings: CallTimings = field(default_factory=CallTimings)

    def welcome(self, sock: Any) -> Welcome:
        """For a peer that was let in, on that connection."""
        near = self.near if self.near and (is_within_host(sock) or comes_near(sock)) else None
        return Welcome(
            PROTOCOL_VERSION,
            self.name,
            self.handler.epoch,
            self.limits.frame_bytes_max,
            version=__version__,
            time_ms=time.time_ns() // 1_000_000,
            traces=self.spans is not None,
            near=near.name if near else "",
            near_port=near.port if near else 0,
        )
