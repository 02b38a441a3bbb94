"""Puts of small objects in one exchange with the event loop, whose thread writes them: writers of any host (I4)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

from moonpool.schemas.access import Identity
from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.messages import SMALL_BYTES, Begin, Committed, Message, PutSmall, Status
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.puts import LANES
from moonpool.store_client.node.seen_puts import SeenPuts
from moonpool.store_client.node.space import SpaceKeeper


class SmallPuts:
    """Of one door. `put_ids`: of the node's own puts. `counter`: of the core's, what bytes are added to."""

    def __init__(
        self,
        core: NodeCore,
        keeper: SpaceKeeper,
        seen: SeenPuts,
        put_ids: Iterator[int],
        counter: str,
    ) -> None:
        self._core = core
        self._keeper = keeper
        self._seen = seen
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
            if not identity.sees_all:
                core.keyspaces.check_visible([message.item.keyspace], identity)
            if message.direct and not self._seen.settled(message.item.shard):
                return Committed([bytes([Status.BUSY]) * core.count(message.item)])
            statuses = core.store(put_id, message.item, message.payload, self._counter)
            if isinstance(statuses, bytes):
                self._keeper.look()
                return self._seen.answer([statuses], visible=message.visible, direct=message.direct)
        return self._put_later(message, Begin(LANES, put_id, [message.item]))

    async def _put_later(self, message: PutSmall, request: Begin) -> Message:
        """The same once there is room."""
        granted = await self._keeper.begin(LANES, request)
        core = self._core
        with core.lock:
            statuses = core.finish(granted, message.item, message.payload, self._counter)
            reply = self._seen.answer([statuses], visible=message.visible, direct=message.direct)
        return reply if isinstance(reply, Message) else await reply
