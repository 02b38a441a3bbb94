"""What a node answers: on its Unix socket to writers of its host, over tcp only what is harmless."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from moonpool.schemas.access import Identity
from moonpool.schemas.errors import DeadlineExceeded, Forbidden, InvalidParams, ProtocolError
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import (
    SMALL_BYTES,
    Begin,
    Commit,
    Committed,
    Done,
    GetSmall,
    GetStatus,
    Granted,
    KeyspaceRegistered,
    ListKeys,
    Message,
    NodeInfo,
    OpenSession,
    PullWrite,
    PutSmall,
    RegisterKeyspace,
    Revoke,
    SessionHeartbeat,
    SessionOpened,
    StatusReport,
)
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.engine_door import EngineDoor
from moonpool.store_client.node.keyspaces import check_registering
from moonpool.store_client.node.listing import list_keys
from moonpool.store_client.node.puts import LANES
from moonpool.store_client.node.report_streams import Visible
from moonpool.store_client.node.sessions import Sessions
from moonpool.store_client.node.small_reads import get_small
from moonpool.store_client.node.space import SpaceKeeper
from moonpool.store_client.rpc.peer import Peer

TOLD_TO_ALL = ("node", "segment", "segment_path", "uptime_s", "capacity_bytes")
"""Of the node's facts, those that don't depend on who stores what."""


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What the local handler serves from."""

    info: NodeInfo
    core: NodeCore
    sessions: Sessions
    keeper: SpaceKeeper
    visible: Visible
    visible_wait_s: float
    put_ids: Iterator[int]
    """Of the node's own puts."""


class RemoteHandler:
    """The tcp door: writers of other hosts use the data lanes, whose threads are the node's own (I4), or have the node
    pull from them."""

    epoch = 0

    def __init__(
        self,
        register: Callable[[KeyspaceSpec], bytes],
        facts: Callable[[], dict[str, int | float | str]],
        core: NodeCore,
        engine_door: EngineDoor | None = None,
    ) -> None:
        self._register = register
        self._facts = facts
        self._core = core
        self._engine_door = engine_door

    def handle(self, message: Message, peer: Peer) -> Message | Awaitable[Message]:
        """See rpc.Handler."""
        if isinstance(message, GetSmall):
            return get_small(self._core, message, peer.identity)
        if isinstance(message, RegisterKeyspace):
            check_registering(message.spec, peer.identity)
            return KeyspaceRegistered(self._register(message.spec), 1)
        if isinstance(message, GetStatus):
            facts = self._facts()
            if not peer.identity.sees_all:  # how full the node is tells of others
                facts = {name: facts[name] for name in TOLD_TO_ALL}
            return StatusReport(facts)
        if isinstance(message, ListKeys):
            with self._core.lock:
                self._core.keyspaces.check_visible([message.keyspace], peer.identity)
                return list_keys(self._core.slots, message)
        if isinstance(message, PullWrite) and self._engine_door is not None:
            with self._core.lock:
                self._core.keyspaces.check_visible([message.item.keyspace], peer.identity)
            return self._engine_door.pull(message)
        raise Forbidden(detail=f"{type(message).__name__} is only for clients on the node's own host")

    def connected(self, peer: Peer) -> None:
        """See rpc.Handler."""

    def disconnected(self, peer: Peer) -> None:
        """A closed connection proves nothing: sessions end by their locks (I4)."""


class LocalHandler(RemoteHandler):
    """The Unix socket: writers that map the segment."""

    def __init__(
        self,
        register: Callable[[KeyspaceSpec], bytes],
        facts: Callable[[], dict[str, int | float | str]],
        parts: NodeParts,
    ) -> None:
        super().__init__(register, facts, parts.core)
        self._parts = parts

    def handle(self, message: Message, peer: Peer) -> Message | Awaitable[Message]:
        """See rpc.Handler."""
        core = self._parts.core
        match message:
            case Begin():
                return self._begin(message, peer.identity)
            case Commit():
                return self._commit(message)
            case PutSmall():
                return self._put_small(message, peer.identity)
            case Revoke():
                _check_session(message.session)
                with core.lock:
                    return Done(core.revoke(message.session, message.put_ids))
            case SessionHeartbeat():
                _check_session(message.session)
                with core.lock:
                    return Done(
                        core.session_heartbeat(message.session, message.open_put_ids, message.newest_put_id)
                    )
            case OpenSession():
                return self._open_session(message)
            case _:
                return super().handle(message, peer)

    def _open_session(self, message: OpenSession) -> SessionOpened:
        parts, layout = self._parts, self._parts.core.head.layout
        record = parts.sessions.open(message.session, message.lock_path)
        with parts.core.lock:
            parts.core.open_session(record)
        return SessionOpened(parts.info, layout.data_offset, layout.header_offset, layout.headers_per_page)

    def _begin(self, message: Begin, identity: Identity) -> Message | Awaitable[Message]:
        core = self._parts.core
        _check_session(message.session)
        with core.lock:
            core.keyspaces.check_visible((item.keyspace for item in message.items), identity)
            if message.commit:
                core.commit(message.session, message.commit)
            answer = core.begin(message.session, message, partial=False)
        if isinstance(answer, Granted):
            return answer
        return self._parts.keeper.begin(message.session, message)

    def _commit(self, message: Commit) -> Message | Awaitable[Message]:
        core = self._parts.core
        _check_session(message.session)
        with core.lock:
            statuses = core.commit(message.session, message.put_ids)
            seen = self._parts.visible(core.reported) if message.visible else None
        return Committed(statuses) if seen is None else self._when_visible(statuses, seen)

    def _put_small(self, message: PutSmall, identity: Identity) -> Message | Awaitable[Message]:
        if len(message.payload) > SMALL_BYTES:
            raise InvalidParams(
                field="payload", value=f"{len(message.payload)} bytes", allowed=f"{SMALL_BYTES} bytes at most"
            )
        core = self._parts.core
        put_id = next(self._parts.put_ids)
        with core.lock:
            core.keyspaces.check_visible([message.item.keyspace], identity)
            statuses = core.store(put_id, message.item, message.payload)
            if isinstance(statuses, bytes):
                return self._stored(message, statuses)
        return self._put_small_later(message, Begin(LANES, put_id, [message.item]))

    async def _put_small_later(self, message: PutSmall, request: Begin) -> Message:
        """The same once there is room."""
        granted = await self._parts.keeper.begin(LANES, request)
        core = self._parts.core
        with core.lock:
            reply = self._stored(message, core.finish(granted, message.item, message.payload))
        return reply if isinstance(reply, Message) else await reply

    def _stored(self, message: PutSmall, statuses: bytes) -> Message | Awaitable[Message]:
        """Under the node's lock."""
        seen = self._parts.visible(self._parts.core.reported) if message.visible else None
        return Committed([statuses]) if seen is None else self._when_visible([statuses], seen)

    def _when_visible(self, statuses: list[bytes], seen: Future[None]) -> Awaitable[Message]:
        """The acknowledgement that `seen` waits for comes in this very loop: no task or thread needs to be woken."""
        loop = asyncio.get_running_loop()
        wait_s = self._parts.visible_wait_s
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


def _check_session(session: int) -> None:
    """The lanes' own puts are nobody else's. Raises ProtocolError."""
    if session <= 0:
        raise ProtocolError(peer="the client", reason=f"session {session}")
