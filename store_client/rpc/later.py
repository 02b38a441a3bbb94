"""A reply that comes later in the same event loop, without a future: whoever waits for it is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

from moonpool.schemas.messages import Message

Reply = Message | Exception
"""What is sent, or what went wrong."""


class Later:
    """Made by a handler, which calls `set` once. Event loop only.

    A future tells its listeners in the loop's next round, and costs several calls of the loop: as much as the rest of a
    small put.
    """

    __slots__ = ("_listener", "_reply", "over")

    def __init__(self) -> None:
        self.over = False
        """Whether there is a reply, or nobody waits for one any more."""
        self._reply: Reply | None = None
        self._listener: Callable[[Reply | None], None] | None = None

    def set(self, reply: Reply) -> None:
        """The reply. What comes after the first one is left out."""
        if self.over:
            return
        self.over, self._reply = True, reply
        listener = self._listener
        if listener is not None:
            self._listener = None  # no ring of objects for the garbage collector
            listener(reply)

    def listen(self, listener: Callable[[Reply | None], None]) -> None:
        """Of the one who waits: called once with the reply, now where it is there; with None after `cancel`."""
        self._listener = listener
        if self.over:
            self._listener = None
            listener(self._reply)

    def left(self) -> None:
        """Nobody waits any more, and there was no reply: for who has something to take back then."""

    def cancel(self) -> None:
        """Nobody waits any more."""
        if not self.over:
            self.over = True
            self.left()
            listener, self._listener = self._listener, None
            if listener is not None:
                listener(None)

    def __await__(self) -> Generator[None, None, Message]:
        """For handlers that wait themselves."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def tell(reply: Reply | None) -> None:
            if future.done():
                return
            if reply is None:
                future.cancel()
            elif isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.listen(tell)
        try:
            return (yield from future)
        except asyncio.CancelledError:
            self.cancel()
            raise
