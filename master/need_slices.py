"""A node's need of room in slices: one a pass of the event loop, so that between two of them everybody else is served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby

import msgspec

from moonpool.master.drops import LOCATIONS_A_LIST
from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.messages import DropList, Message, Need, Victims

SLICES_MAX = 16
SLICE_BYTES = 4 << 20
"""64 blocks of 64 KiB, which cost some 2 ms where they are leaves of chains. Nodes ask for pages of 64 MiB."""

SHORT_S = 0.0005
"""After a slice that took less the next one is twice as large: a few large objects cost no more than one of them."""


def answer_need(
    message: Need, answer: Callable[[Message], Message], now_s: Callable[[], float] = time.perf_counter
) -> Message | Awaitable[Message]:
    """`answer` of the whole, or of one slice after the other. Raises what it raises."""
    slice_bytes = max(SLICE_BYTES, -(-message.want_bytes // SLICES_MAX))
    if message.want_bytes <= slice_bytes:
        return answer(message)
    return _answer_slices(message, slice_bytes, answer, now_s)


async def _answer_slices(
    message: Need, slice_bytes: int, answer: Callable[[Message], Message], now_s: Callable[[], float]
) -> Message:
    """Ends where a slice finds too little. What was found is told, whatever comes of the next slice: it has left the
    index."""
    found = Victims([], 0, -1)
    while found.freed_bytes < message.want_bytes:
        want_bytes = min(slice_bytes, message.want_bytes - found.freed_bytes)
        began_s = now_s()
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
        if now_s() - began_s < SHORT_S:
            slice_bytes *= 2
        await asyncio.sleep(0)
    return msgspec.structs.replace(found, drops=joined(found.drops))


def joined(drops: Sequence[DropList]) -> list[DropList]:
    """The same in fewer lists, each of which costs the node as much as a hundred locations do."""
    joined: list[DropList] = []
    for (keyspace, shard), some in groupby(drops, lambda one: (one.keyspace, one.shard)):
        same = list(some)
        if len(same) > 1 and sum(len(one.ranks) for one in same) <= 2 * LOCATIONS_A_LIST:
            columns = ([one.ranks, one.hashes, one.slots, one.generations] for one in same)
            ranks, hashes, slots, generations = map(b"".join, zip(*columns, strict=True))
            same = [DropList(keyspace, ranks, hashes, slots, generations, shard)]
        joined += same
    return joined
