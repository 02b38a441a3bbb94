"""Long requests in slices: one a pass of the event loop, so that between two of them everybody else is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from moonpool.schemas.errors import Overloaded
from moonpool.schemas.messages import Message
from moonpool.schemas.routing import Part, merged

SLICE_BLOCKS = 512
"""Blocks of one slice: a run's."""

PUT_SLICE = 1024
"""Of a PutStart, whose items are never cut: half a microsecond a block."""

LOOKUP_SLICE = 8192
"""Rows of one slice where they are only looked up: less than a millisecond, and what a client asks for at once."""

LONG_MAX = 64
"""Long requests under way at once: they take turns, and all of them are kept in memory."""


class Turns:
    """To be used in one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # fair: who has had a slice waits until all others have had theirs
        self._under_way = 0
        self.slices = 0
        """So far."""

    def check_room(self) -> None:
        """Raises Overloaded."""
        if self._under_way >= LONG_MAX:
            raise Overloaded(what="the list of long requests", limit=LONG_MAX)

    async def run(
        self, message: Message, parts: Sequence[Part], answer: Callable[[Message], Message]
    ) -> Message:
        """Answers the parts one after the other. Raises what `answer` raises: the parts before have been answered
        then, and their leases and promises end by themselves."""
        self._under_way += 1
        try:
            replies: list[Message] = []
            for part in parts:
                async with self._turn:
                    replies.append(answer(part.message))
                    self.slices += 1
                    await asyncio.sleep(0)
            return merged(message, parts, replies)
        finally:
            self._under_way -= 1
