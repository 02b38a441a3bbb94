"""Puts of small objects in one exchange with the event loop, whose thread writes them: writers of any host (I4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future

from moonpool.schemas.access import Identity
from moonpool.schemas.errors import DeadlineExceeded, InvalidParams
from moonpool.schemas.messages import SMALL_BYTES, Begin, Committed, Message, PutSmall
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.puts import LANES
from moonpool.store_client.node.report_streams import Visible
from moonpool.store_client.node.space import SpaceKeeper


class SmallPuts:
    """Of one door. `put_ids`: of the node's own puts. `counter`: of the core's, what bytes are added to."""

    def __init__(
        self,
        core: NodeCore,
        keeper: SpaceKeeper,
        visible: Visible,
        visible_wait_s: float,
        put_ids: Iterator[int],
        counter: str,
    ) -> None:
        self._core = core
        self._keeper = keeper
        self._visible = visible
        self._visible_wait_s = visible_wait_s
        self._put_ids = put_ids
        self._counter = counter

    def put(self, message: PutSmall, identity: Identity) -> Message | Awaitable[Message]:
        """Committed: at once, or when there is room and it is visible. Raises KeyspaceUnknown, InvalidParams, Overloaded."""
        if len(message.payload) > SMALL_BYTES:
            raise InvalidParams(
                field="payload", value=f"{len(message.payload)} bytes", allowed=f"{SMALL_BYTES} bytes at most"
            )
        core = self._core
        put_id = next(self._put_ids)
        with core.lock:
            core.keyspaces.check_visible([message.item.keyspace], identity)
            statuses = core.store(put_id, message.item, message.payload, self._counter)
            if isinstance(statuses, bytes):
                return self._stored(message, statuses)
        return self._put_later(message, Begin(LANES, put_id, [message.item]))

    async def _put_later(self, message: PutSmall, request: Begin) -> Message:
        """The same once there is room."""
        granted = await self._keeper.begin(LANES, request)
        core = self._core
        with core.lock:
            statuses = core.finish(granted, message.item, message.payload, self._counter)
            reply = self._stored(message, statuses)
        return reply if isinstance(reply, Message) else await reply

    def _stored(self, message: PutSmall, statuses: bytes) -> Message | Awaitable[Message]:
        """Under the node's lock."""
        seen = self._visible(self._core.reported) if message.visible else None
        return Committed([statuses]) if seen is None else when_visible([statuses], seen, self._visible_wait_s)


def when_visible(statuses: list[bytes], seen: Future[None], wait_s: float) -> Awaitable[Message]:
    """Committed once `seen` is done. The acknowledgement that it waits for comes in this very loop: no task or thread
    needs to be woken."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Message] = loop.create_future()

    def tell(_: Future[None]) -> None:
        if not answer.done():
            answer.set_result(Committed(statuses))

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
