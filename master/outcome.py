"""Who asks a master's core, and what a request leads to."""

from __future__ import annotations

from dataclasses import dataclass, field

from moonpool.schemas.messages import Check, CopyOrder, Drop, Message

Push = tuple[bytes, Drop | Check | CopyOrder]
"""(segment, message)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks: `host` shares memory with the sender, `segment` is its own where it is a node. `sees_all`: keyspaces
    and counters of every tenant are its business."""

    host: str
    tenant: str
    segment: bytes | None = None
    sees_all: bool = True


@dataclass(slots=True)
class Outcome:
    """`awaits`: (segment, drop id) that nodes should confirm before the reply; `confirmed`: that this one confirmed."""

    reply: Message
    pushes: list[Push] = field(default_factory=list)
    awaits: tuple[tuple[bytes, int], ...] = ()
    confirmed: tuple[tuple[bytes, int], ...] = ()
