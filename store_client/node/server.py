"""What a node answers: on its Unix socket to writers of its host, over tcp only what is harmless."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from moonpool.schemas.access import Identity
from moonpool.schemas.errors import Forbidden, ProtocolError
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import (
    AHEAD_SLOTS,
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
    PutAhead,
    PutSmall,
    RegisterKeyspace,
    Revoke,
    SessionHeartbeat,
    SessionOpened,
    Status,
    StatusReport,
)
from moonpool.store_client.node.ahead import grant_ahead, like
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.engine_door import EngineDoor
from moonpool.store_client.node.keyspaces import check_registering
from moonpool.store_client.node.listing import list_keys
from moonpool.store_client.node.seen_puts import GrantAhead, SeenPuts
from moonpool.store_client.node.sessions import Sessions
from moonpool.store_client.node.small_puts import SmallPuts
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
    seen: SeenPuts
    small_puts: SmallPuts


class RemoteHandler:
    """The tcp door. No writer of another host writes into a slot (I4): small objects come here and are written by the
    node, larger ones come over the data lanes, whose threads are the node's own, or the node pulls them."""

    epoch = 0

    def __init__(
        self,
        register: Callable[[KeyspaceSpec], bytes],
        facts: Callable[[], dict[str, int | float | str]],
        core: NodeCore,
        small_puts: SmallPuts,
        engine_door: EngineDoor | None = None,
    ) -> None:
        self._register = register
        self._facts = facts
        self._core = core
        self._small_puts = small_puts
        self._engine_door = engine_door

    def handle(self, message: Message, peer: Peer) -> Message | Awaitable[Message]:
        """See rpc.Handler."""
        if isinstance(message, GetSmall):
            return get_small(self._core, message, peer.identity)
        if isinstance(message, PutSmall):
            return self._small_puts.put(message, peer.identity)
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
        super().__init__(register, facts, parts.core, parts.small_puts)
        self._parts = parts

    def handle(self, message: Message, peer: Peer) -> Message | Awaitable[Message]:
        """See rpc.Handler."""
        core = self._parts.core
        match message:
            case PutSmall():
                return self._small_puts.put(message, peer.identity)
            case Begin():
                return self._begin(message, peer.identity)
            case Commit():
                return self._commit(message)
            case PutAhead():
                return self._put_ahead(message, peer.identity)
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
            if message.direct and not all(
                map(self._parts.seen.settled, {item.shard for item in message.items})
            ):
                return self._ask_first(message)
            answer = core.begin(message.session, message, partial=False)
        if isinstance(answer, Granted):
            self._parts.keeper.look()
            return answer
        return self._parts.keeper.begin(message.session, message)

    def _ask_first(self, message: Begin) -> Granted:
        """What was allowed before the master knew too little, or before it was another one."""
        count = sum(map(self._parts.core.count, message.items))
        return Granted(message.put_id, bytes([Status.BUSY]) * count, bytes(4 * count), bytes(8 * count))

    def _commit(self, message: Commit) -> Message | Awaitable[Message]:
        core = self._parts.core
        _check_session(message.session)
        with core.lock:
            ahead = self._ahead(message.session, message.ahead, *message.put_ids[-1:])
            statuses = core.commit(message.session, message.put_ids)
            return self._parts.seen.answer(
                statuses, visible=message.visible, direct=message.direct, ahead=ahead
            )

    def _put_ahead(self, message: PutAhead, identity: Identity) -> Message | Awaitable[Message]:
        core, seen, item = self._parts.core, self._parts.seen, message.item
        _check_session(message.session)
        with core.lock:
            core.keyspaces.check_visible([item.keyspace], identity)
            count = core.count(item)
            if message.direct and not seen.settled(item.shard):
                core.revoke(message.session, [message.put_id])
                return Committed([bytes([Status.BUSY]) * count])
            ahead = self._ahead(message.session, message.ahead, message.put_id, 2 * count)
            statuses = [core.put_ahead(message)]
            return seen.answer(statuses, visible=message.visible, direct=message.direct, ahead=ahead)

    def _ahead(
        self, session: int, put_id: int, put_like: int = 0, count_max: int = AHEAD_SLOTS
    ) -> GrantAhead | None:
        """What grants slots under `put_id`, like those of another open put."""
        core = self._parts.core
        put = core.writers.find_put(session, put_like)
        wanted = like(core.slots, put, count_max) if put_id > 0 and put is not None else None
        if wanted is None:
            return None
        free_bytes_min = self._parts.keeper.free_bytes_low
        return partial(grant_ahead, core.slots, core.writers, session, put_id, wanted, free_bytes_min)


def _check_session(session: int) -> None:
    """The lanes' own puts are nobody else's. Raises ProtocolError."""
    if session <= 0:
        raise ProtocolError(peer="the client", reason=f"session {session}")
