"""What a server's handler sees of the connections it serves, and what bounds them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol

from moonpool.schemas.access import Identity
from moonpool.schemas.framing import FRAME_BYTES_MAX
from moonpool.schemas.messages import Hello, Message

Pending = asyncio.Future[Message]
"""A reply that isn't there yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one RpcServer. A peer that passes one waits, is refused, or is closed; the server lives on."""

    connections_max: int = 4096
    inflight_max: int = 256
    """Requests of one connection under way at once; more stay unread in its socket."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    handshake_timeout_s: float = 5.0
    stall_timeout_s: float = 30.0
    """A peer that leaves a frame half sent, or its replies unread, for so long is closed."""
    write_bytes_max: int = 1 << 20
    """Replies waiting for a slow reader; beyond it, its requests are not read."""
    push_bytes_max: int = 32 << 20
    """Bytes waiting for a peer that doesn't read; one more push closes it."""
    buffered_bytes_max: int = 256 << 20
    """Partial frames of all connections together; the connection that passes it is closed."""
    turn_frames: int = 32
    turn_s: float = 0.001
    """A connection is served so many frames or so long, then all others have their turn."""
    turns_heard: int = 256
    """In one go, of one that is heard first: a node has 64 messages under way at most, and few take longer than a turn."""


class Peer(Protocol):
    """One connection after its handshake. To be used in the server's event loop only."""

    hello: Hello
    """Without its token."""
    name: str
    """For logs and errors: role, client name and address."""
    data: dict[str, Any]
    """The handler's own notes on this connection."""

    @property
    def identity(self) -> Identity:
        """Whom it speaks for."""
        ...

    @property
    def near(self) -> bool:
        """Whether it has come through the near door: what its peer has sent lies in its socket, and nowhere between."""
        ...

    def hear(self) -> None:
        """Handles all that lies in its socket by now, before anything else; not where it is at work on it already."""
        ...

    def push(self, message: Message) -> bool:
        """Sends a message that is no reply. False where the connection is gone, had to be closed because its
        peer doesn't read, or the message is larger than a frame."""
        ...

    def close(self) -> None:
        """Closes it once what was written has left."""
        ...


class Handler(Protocol):
    """The program behind an RpcServer. All calls come from its event loop."""

    @property
    def epoch(self) -> int:
        """What Welcome tells: a master's epoch, 0 for a node."""
        ...

    def handle(self, message: Message, peer: Peer) -> Message | Awaitable[Message]:
        """The reply, sent at once, or an awaitable (best a Later) for one that has to wait, which must bound its own time. It is
        cancelled when its connection is lost. A MoonpoolError becomes Failed with its code."""
        ...

    def connected(self, peer: Peer) -> None:
        """The handshake is done."""
        ...

    def disconnected(self, peer: Peer) -> None:
        """Its connection is gone. Called once for each `connected`."""
        ...


def older(since_s: float | None, now_s: float, limit_s: float) -> bool:
    """Whether something has lasted too long; None: it isn't so now."""
    return since_s is not None and now_s - since_s > limit_s


def printable(text: str) -> str:
    """A peer's own words, fit for one line of a log."""
    return "".join(c if c.isprintable() else "?" for c in text[:64])
