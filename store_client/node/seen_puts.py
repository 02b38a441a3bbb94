"""What a writer is told of a commit once the masters have it, and of direct puts whether they may be begun."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

from moonpool.schemas.errors import DeadlineExceeded, Unavailable
from moonpool.schemas.messages import Committed, Granted, Message, PutAnswer, Status
from moonpool.schemas.packed import U64
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.report_streams import Watch
from moonpool.store_client.node.reports import Surplus, Wait
from moonpool.store_client.rpc.later import Later

GrantAhead = Callable[[], Granted | None]
"""What grants slots for a next put. Under the node's lock."""

Generations = Sequence[Sequence[int] | U64]
"""As NodeCore.generations."""


class SeenPuts:
    """To be made in the event loop, and used there only. `settled`: whether the master of a shard knows all that the node
    holds."""

    def __init__(self, core: NodeCore, watch: Watch, wait_s: float, settled: Callable[[int], bool]) -> None:
        self._core = core
        self._watch = watch
        self._wait_s = wait_s
        self.settled = settled
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._open: dict[Later, tuple[float, Wait]] = {}
        """Those that wait, and until when: in that order, since all wait equally long. One timer serves all."""
        self._timer: asyncio.TimerHandle | None = None

    def answer(
        self,
        statuses: list[bytes],
        *,
        visible: bool,
        direct: bool = False,
        ahead: GrantAhead | None = None,
    ) -> Message | Awaitable[Message]:
        """To what the core has just committed. Under the node's lock. A direct put is seen by the very masters that it was
        begun under: those who come next may be telling the node of removals from before it."""
        if not visible and not direct:
            return Committed(statuses, ahead() if ahead else None)
        later, generations = Later(), self._core.generations
        granted: list[Granted | None] = []

        def grant() -> None:
            if ahead is not None and not granted and not later.over:
                granted.append(ahead())

        def seen(outcome: Surplus | Unavailable) -> None:
            grant()
            if isinstance(outcome, Unavailable):
                reply = Committed(without_proof(statuses), *granted)
            else:
                reply = Committed(with_surplus(statuses, generations, outcome), *granted)
            if threading.get_ident() == self._thread:
                self._end(later, reply)
            else:  # a lane's commit has broken the stream
                self._loop.call_soon_threadsafe(self._end, later, reply)

        wait = self._watch(self._core.reported, seen, unbroken=direct)
        if not later.over:
            self._open[later] = time.monotonic() + self._wait_s, wait
            later.on_cancel(lambda: self._leave(later))
            if self._timer is None:
                self._timer = self._loop.call_later(self._wait_s, self._give_up)
            if ahead is not None:
                # What is written is sent at the end of a turn of the loop: the report is in the next one.
                self._loop.call_soon(self._loop.call_soon, self._under_lock, grant)
        return later

    def _under_lock(self, call: Callable[[], None]) -> None:
        with self._core.lock:
            call()

    def _end(self, later: Later, reply: Message | DeadlineExceeded) -> None:
        self._open.pop(later, None)
        later.set(reply)

    def _leave(self, later: Later) -> None:
        _, wait = self._open.pop(later)
        wait.leave()

    def _give_up(self) -> None:
        """Nobody waits longer than that."""
        self._timer = None
        now_s = time.monotonic()
        while self._open:
            later, (until_s, wait) = next(iter(self._open.items()))
            if until_s > now_s:
                self._timer = self._loop.call_later(until_s - now_s, self._give_up)
                return
            wait.leave()
            self._end(later, DeadlineExceeded(peer="the master", what="a report", timeout_s=self._wait_s))


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
