"""What a writer is told of a commit once the masters have it, and of direct puts whether they may be begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future

from moonpool.schemas.errors import DeadlineExceeded
from moonpool.schemas.messages import Committed, Message, PutAnswer, Status
from moonpool.schemas.packed import U64
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.report_streams import Visible
from moonpool.store_client.node.reports import Surplus

Generations = Sequence[Sequence[int] | U64]
"""As NodeCore.generations."""


class SeenPuts:
    """Event loop only. `settled`: whether the masters of these shards know all that the node holds."""

    def __init__(
        self, core: NodeCore, visible: Visible, wait_s: float, settled: Callable[[Iterable[int]], bool]
    ) -> None:
        self._core = core
        self._visible = visible
        self._wait_s = wait_s
        self.settled = settled

    def answer(
        self, statuses: list[bytes], *, visible: bool, direct: bool = False
    ) -> Message | Awaitable[Message]:
        """To what the core has just committed. Under the node's lock. A direct put is seen by the very masters that it was
        begun under: those who come next may be telling the node of removals from before it."""
        if not visible and not direct:
            return Committed(statuses)
        seen = self._visible(self._core.reported, unbroken=direct)
        return when_seen(statuses, self._core.generations, seen, self._wait_s)


def when_seen(
    statuses: list[bytes], generations: Generations, seen: Future[Surplus], wait_s: float
) -> Awaitable[Message]:
    """Committed once `seen` is done. The acknowledgement that it waits for comes in this very loop: no task or thread
    needs to be woken."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Message] = loop.create_future()

    def tell(seen: Future[Surplus]) -> None:
        if answer.done() or seen.cancelled():
            return
        if seen.exception() is not None:
            answer.set_result(Committed(without_proof(statuses)))
        else:
            answer.set_result(Committed(with_surplus(statuses, generations, seen.result())))

    def give_up() -> None:
        if not answer.done():
            error = DeadlineExceeded(peer="the master", what="a report", timeout_s=wait_s)
            answer.set_exception(error)

    timer = loop.call_later(wait_s, give_up)

    def end(_: asyncio.Future[Message]) -> None:
        timer.cancel()
        seen.cancel()

    answer.add_done_callback(end)
    seen.add_done_callback(tell)
    return answer


def with_surplus(statuses: list[bytes], generations: Generations, surplus: Surplus) -> list[bytes]:
    """EXISTS or BUSY where a master has no use for a block that was committed."""
    if not surplus:  # the usual case
        return statuses
    answers = []
    for mine, numbers in zip(statuses, generations, strict=True):
        told = bytearray(mine)
        for index, generation in enumerate(map(int, numbers)):
            if generation in surplus and told[index] == Status.OK:
                exists = surplus[generation] == PutAnswer.EXISTS
                told[index] = Status.EXISTS if exists else Status.BUSY
        answers.append(bytes(told))
    return answers


def without_proof(statuses: list[bytes]) -> list[bytes]:
    """FAILED instead of OK: whether a master has them can't be said."""
    return [mine.replace(bytes([Status.OK]), bytes([Status.FAILED])) for mine in statuses]
