"""What a master has pushed and nobody has done yet."""

from __future__ import annotations

import asyncio

from moonpool.schemas.messages import Check, Drop
from moonpool.store_client.node.core import NodeCore

PUSHES_MAX = 4096

Push = Drop | Check


class Pushes:
    """A bounded queue. Event loop only. While it holds removals that mean only what was begun before a generation,
    nothing moves: what moves gets a new one."""

    def __init__(self, core: NodeCore) -> None:
        self._core = core
        self._queue: asyncio.Queue[Push] = asyncio.Queue(PUSHES_MAX)

    def put(self, push: Push) -> None:
        """Raises asyncio.QueueFull."""
        self._queue.put_nowait(push)
        self._hold(push, 1)

    async def get(self) -> Push:
        """The oldest one. Call `done` with it."""
        return await self._queue.get()

    def done(self, push: Push) -> None:
        """It is obeyed, or can't be."""
        self._hold(push, -1)

    def clear(self) -> None:
        """What is left is left undone."""
        while not self._queue.empty():
            self.done(self._queue.get_nowait())

    def _hold(self, push: Push, more: int) -> None:
        if isinstance(push, Drop) and push.before:
            with self._core.lock:
                self._core.drops.sweeps += more
