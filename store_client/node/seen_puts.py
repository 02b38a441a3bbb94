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


class _Put(Later):
    """What a writer waits for."""

    __slots__ = ("_ahead", "_generations", "_granted", "_puts", "_statuses", "until_s", "wait")

    def __init__(
        self, puts: SeenPuts, statuses: list[bytes], generations: Generations, ahead: GrantAhead | None
    ) -> None:
        super().__init__()
        self._ahead = ahead
        self._granted: Granted | None = None
        self._puts = puts
        self._statuses = statuses
        self._generations = generations
        self.until_s = 0.0
        self.wait: Wait | None = None

    def seen(self, outcome: Surplus | Unavailable) -> None:
        """See Seen."""
        if self._ahead is not None:
            self.grant()
        statuses = self._statuses
        if isinstance(outcome, Unavailable):
            statuses = without_proof(statuses)
        elif outcome:
            statuses = with_surplus(statuses, self._generations, outcome)
        self._puts.end(self, Committed(statuses, self._granted))

    def grant(self) -> None:
        """Slots for the writer's next put, once, where they are wanted. Under the node's lock."""
        if self._ahead is not None and not self.over:
            ahead, self._ahead = self._ahead, None
            self._granted = ahead()

    def left(self) -> None:
        """See Later."""
        self._puts.leave(self)


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
        self._open: dict[_Put, None] = {}
        """Those that wait, in the order in which their time is over, since all wait equally long: one timer serves all."""
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
        put = _Put(self, statuses, self._core.generations, ahead)
        wait = self._watch(self._core.reported, put.seen, unbroken=direct)
        if not put.over:
            put.wait, put.until_s = wait, time.monotonic() + self._wait_s
            self._open[put] = None
            if self._timer is None:
                self._timer = self._loop.call_later(self._wait_s, self._give_up)
            if ahead is not None:
                # What is written is sent at the end of a turn of the loop: the report is in the next one.
                self._loop.call_soon(self._loop.call_soon, self._under_lock, put.grant)
        return put

    def _under_lock(self, call: Callable[[], None]) -> None:
        with self._core.lock:
            call()

    def end(self, put: _Put, reply: Message | DeadlineExceeded) -> None:
        """The reply to a put. From any thread: a lane's commit may break a stream."""
        if threading.get_ident() == self._thread:
            self._open.pop(put, None)
            put.wait = None
            put.set(reply)
        else:
            self._loop.call_soon_threadsafe(self.end, put, reply)

    def leave(self, put: _Put) -> None:
        """Nobody waits for it any more."""
        self._open.pop(put, None)
        wait, put.wait = put.wait, None
        if wait is not None:
            wait.leave()

    def _give_up(self) -> None:
        """Nobody waits longer than that."""
        self._timer = None
        now_s = time.monotonic()
        while self._open:
            put = next(iter(self._open))
            if put.until_s > now_s:
                self._timer = self._loop.call_later(put.until_s - now_s, self._give_up)
                return
            self.leave(put)
            put.set(DeadlineExceeded(peer="the master", what="a report", timeout_s=self._wait_s))


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
