"""The way from the REST interface's event loop into the master's: bounded slices of work, each with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

from moonpool.master.rest.parts import MasterParts
from moonpool.schemas.errors import Closed, DeadlineExceeded

Answer = TypeVar("Answer")

CALL_TIMEOUT_S = 10.0
"""In which the master's loop must have answered: it is never busy for so long."""

Slices = Generator[None, None, Answer]
"""Work in slices: each `yield` gives the master's loop back to its clients."""


class Gateway:
    """Runs functions of MasterParts on the master's loop. To be used from one other event loop."""

    def __init__(self, parts: MasterParts, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = parts.settings
        self.origins = parts.origins
        self.started_s = parts.started_s
        self.events = parts.handler.events
        self._parts = parts
        self._loop = loop

    async def read(self, step: Callable[[MasterParts], Answer]) -> Answer:
        """The result of one short function. Raises what it raises, DeadlineExceeded and Closed."""

        async def run() -> Answer:
            return step(self._parts)

        return await self._run(run, CALL_TIMEOUT_S)

    async def read_slices(self, steps: Callable[[MasterParts], Slices[Answer]], timeout_s: float) -> Answer:
        """The same of work that is too much for one turn of the master's loop."""

        async def run() -> Answer:
            with contextlib.closing(steps(self._parts)) as slices:
                while True:
                    try:
                        next(slices)
                    except StopIteration as end:
                        answer: Answer = end.value
                        return answer
                    await asyncio.sleep(0)

        return await self._run(run, timeout_s)

    async def ask(self, step: Callable[[MasterParts], Awaitable[Answer]], timeout_s: float) -> Answer:
        """The result of something that waits, for nodes that must confirm a removal for example."""

        async def run() -> Answer:
            return await step(self._parts)

        return await self._run(run, timeout_s)

    async def _heard(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        self._parts.handler.first.hear()
        return await work()

    async def _run(self, work: Callable[[], Awaitable[Answer]], timeout_s: float) -> Answer:
        heard = self._heard(work)
        try:
            future: Future[Answer] = asyncio.run_coroutine_threadsafe(heard, self._loop)
        except RuntimeError:
            heard.close()
            raise Closed(what="the master") from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
        except TimeoutError:
            raise DeadlineExceeded(peer="the master", what="a request", timeout_s=timeout_s) from None
