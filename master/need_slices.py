"""A node's need of room in slices: one a pass of the event loop, so that between two of them everybody else is served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.messages import Message, Need, Victims

SLICES_MAX = 16
SLICE_BYTES = 4 << 20
"""64 blocks of 64 KiB, which cost some 2 ms where they are leaves of chains. Nodes ask for pages of 64 MiB."""


def answer_need(message: Need, answer: Callable[[Message], Message]) -> Message | Awaitable[Message]:
    """`answer` of the whole, or of one slice after the other. Raises what it raises."""
    slice_bytes = max(SLICE_BYTES, -(-message.want_bytes // SLICES_MAX))
    if message.want_bytes <= slice_bytes:
        return answer(message)
    return _answer_slices(message, slice_bytes, answer)


async def _answer_slices(message: Need, slice_bytes: int, answer: Callable[[Message], Message]) -> Message:
    """Ends where a slice finds too little. What was found is told, whatever comes of the next slice: it has left the
    index."""
    found = Victims([], 0, -1)
    while found.freed_bytes < message.want_bytes:
        want_bytes = min(slice_bytes, message.want_bytes - found.freed_bytes)
        try:
            more = answer(msgspec.structs.replace(message, want_bytes=want_bytes))
        except MoonpoolError:
            if not found.drops:
                raise
            break
        assert isinstance(more, Victims)
        freed_bytes = found.freed_bytes + more.freed_bytes
        drops, claims = [*found.drops, *more.drops], more.claims or found.claims
        found = Victims(drops, freed_bytes, more.next_age_ms, claims)
        if more.freed_bytes < want_bytes:
            break
        await asyncio.sleep(0)
    return found
