"""The master's requests: from connections to the core, and from the core to the nodes' connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from math import inf

import msgspec

from moonpool.master.awaited import after, both
from moonpool.master.confirmations import Confirmations, DropKey
from moonpool.master.core import MasterCore, Origin
from moonpool.master.events import Events
from moonpool.master.hard_requests import RECORDED, HardRequests
from moonpool.master.heard_first import HeardFirst
from moonpool.master.membership.view import Member
from moonpool.master.need_slices import answer_need
from moonpool.master.outcome import Push
from moonpool.master.turns import LOOKUP_SLICE, PUT_SLICE, SLICE_BLOCKS, Turns
from moonpool.schemas.clock import Clock
from moonpool.schemas.errors import Forbidden, InvalidParams, Unavailable
from moonpool.schemas.messages import (
    Announce,
    Announced,
    Clear,
    ClusterMap,
    Describe,
    DescribeKeyspace,
    Drop,
    GetClusterMap,
    GetStatus,
    Heartbeat,
    Locate,
    Match,
    Message,
    Need,
    NodeState,
    Presence,
    Probe,
    Remove,
    Removed,
    Renew,
    Report,
    StatusReport,
    Victims,
)
from moonpool.schemas.routing import Part
from moonpool.store_client.rpc.peer import Peer

log = logging.getLogger(__name__)

QUESTIONS = frozenset[type[Message]]({Probe, Match, Presence, Locate, Renew, Describe, DescribeKeyspace})
"""Requests that leave nothing for the nodes to do."""

SHORT_BYTES = 16 * LOOKUP_SLICE
"""Packed hashes, of 16 bytes or more, that are one slice, whatever they are."""

WAIT_MS_MAX, LATE_MS = 60_000, 500
TICK_S = 0.2


class MasterHandler:
    """A Handler (store_client/rpc/peer.py) before a MasterCore. `address` goes into cluster maps."""

    def __init__(self, core: MasterCore, clock: Clock, hard: HardRequests | None = None) -> None:
        """`hard`: where hard state is recorded; None: nowhere."""
        self.address = ""
        self.advertised = ""
        """How other masters know this one."""
        self.others: list[Member] = []
        """The other masters of its cluster."""
        self._hard = hard
        self.serving: Callable[[], bool] = _always
        """Whether this master may answer at all: one of several, while it holds its lease (I7)."""
        self.events = Events()
        self._core = core
        self._shards = core.shards
        self._clock = clock
        self._nodes: dict[bytes, Peer] = {}
        """The connection on which each segment was last announced: pushes for it go there."""
        self._confirmations = Confirmations()
        self._turns = Turns()
        self.first = HeardFirst()
        self._peers = 0
        self._clients: dict[Peer, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._piece: asyncio.TimerHandle | None = None
        """Of work that may wait."""

    @property
    def epoch(self) -> int:
        """See Handler."""
        return self._core.epoch

    @property
    def connections(self) -> int:
        """Clients and nodes that are connected."""
        return self._peers

    def clients(self) -> list[tuple[str, str]]:
        """(name, host) of each client, once."""
        hellos = [peer.hello for peer in self._clients]
        return list(dict.fromkeys((one.client, one.host) for one in hellos if one.role == "client"))

    @property
    def confirmations(self) -> int:
        """Drops that somebody waits for."""
        return len(self._confirmations)

    # ------------------------------------------------------------ requests

    def handle(self, message: Message, peer: Peer) -> Message | Awaitable[Message]:
        """See Handler. Awaitable is what nodes must confirm, or the store, and requests so long that they go in
        slices."""
        alone = self.serving is _always
        if not alone and not self._look_at_lease() and not isinstance(message, GetStatus):
            raise self._deposed()
        if type(message) is Report:
            return self._report(message, peer)
        self.first.hear(peer)
        origin = peer.data.get("origin") or self._origin(peer)
        if type(message) in QUESTIONS:
            return self._answer(message, origin)
        if isinstance(message, (Heartbeat, Need)):
            self._check_segment(message.segment, peer)
        elif isinstance(message, Announce) and (others := self._check_announce(message, peer)):
            return self._join(message, peer, others)
        self._core.check(message, origin)
        if self._hard is not None and isinstance(message, RECORDED) and not self._hard.holds(message):
            return self._hard.handle(message, origin)
        if isinstance(message, (Remove, Clear)):
            return self._remove(message, origin)
        if isinstance(message, Need):
            return answer_need(message, partial(self._answer_part, origin))
        parts = self._core.shards.slices(message, PUT_SLICE)
        if parts:
            return self._answer_parts(message, parts, origin)
        outcome = self._core.handle(message, self._clock.now_s(), origin)
        reply = outcome.reply
        if isinstance(reply, Announced):
            reply = self._announced(message, reply, peer)
        self._push(outcome.pushes)
        if isinstance(reply, ClusterMap) and not reply.masters:
            return msgspec.structs.replace(reply, masters=[self.address])
        if isinstance(reply, StatusReport) and origin.sees_all:
            facts = self._hard.facts() if self._hard is not None else {}
            connected = {"connections": self._peers, "nodes_connected": len(self._nodes)}
            return StatusReport({**reply.facts, **facts, **connected})
        return reply

    def _report(self, message: Report, peer: Peer) -> Message:
        self._check_segment(message.segment, peer)
        if not peer.identity.sees_all:
            self._core.check(message, self._origin(peer))
        outcome = self._core.report(message, self._clock.now_s())
        if outcome.confirmed:
            self._confirmations.confirm(outcome.confirmed)
            if self._hard is not None:
                self._push(self._hard.confirmed(outcome.confirmed))
        if outcome.pushes:
            self._push(outcome.pushes)
        return outcome.reply

    def _origin(self, peer: Peer) -> Origin:
        """Made anew when the peer announces a segment."""
        whose, segment = peer.identity, peer.data.get("segment")
        origin = peer.data["origin"] = Origin(peer.hello.host, whose.tenant, segment, whose.sees_all)
        return origin

    def _answer(self, message: Message, origin: Origin) -> Message | Awaitable[Message]:
        """To one of QUESTIONS."""
        self._core.check(message, origin)
        if isinstance(message, (Presence, Locate)):
            short = len(message.hashes) <= SHORT_BYTES and not message.shards  # the usual case
            parts = [] if short else self._shards.slices(message, LOOKUP_SLICE)
        else:
            parts = self._shards.slices(message, SLICE_BLOCKS)
        if parts:
            return self._answer_parts(message, parts, origin)
        return self._core.answer(message, self._clock.now_s(), origin)

    def _answer_parts(self, message: Message, parts: Sequence[Part], origin: Origin) -> Awaitable[Message]:
        self._turns.check_room()
        return self._turns.run(message, parts, partial(self._answer_part, origin))

    def _remove(self, message: Remove | Clear, origin: Origin) -> Message | Awaitable[Message]:
        pinned = self._hard.kept_rows(message) if self._hard is not None else {}
        outcome = self._core.handle(message, self._clock.now_s(), origin)
        pinned = self._hard.taken_pins(message, pinned) if self._hard is not None else {}
        voided = self._hard.removed(message) if self._hard is not None else None
        reply = outcome.reply
        assert isinstance(reply, Removed)
        if isinstance(message, Clear) and not message.dry_run:
            keyspace = message.keyspace.hex()
            self.events.add("removal", f"keyspace {keyspace} is cleared", keyspace=keyspace)
        missed = self._hard.unheard(message) if self._hard is not None else {}
        if not outcome.awaits and not missed:
            self._push(outcome.pushes)
            return after(voided, reply) if voided is not None else reply
        drops = {(to, drop.drop_id): drop for to, drop in outcome.pushes if isinstance(drop, Drop)} | missed
        wait_s = min(max(message.wait_ms, 0), WAIT_MS_MAX) / 1000
        # Before the pushes, and not in a task: no confirmation can come too early to be seen.
        reachable = [key for key in outcome.awaits if key[0] in self._nodes]
        waiting = self._confirmations.expect(reachable, wait_s)
        self._push(outcome.pushes)
        away = [*missed, *(key for key in outcome.awaits if key not in reachable)]
        removed = self._removed(message, reply, drops, pinned, away, missed, waiting)
        return both(voided, removed) if voided is not None else removed

    def _look_at_lease(self) -> bool:
        serving = self.serving()
        if serving is self._shards.late:
            self._shards.lease_is_late(not serving)
        return serving

    def _deposed(self) -> Unavailable:
        return Unavailable(peer=f"the master at {self.address}", retry_in_s=TICK_S)

    def _answer_part(self, origin: Origin, message: Message) -> Message:
        if not self._look_at_lease():
            raise self._deposed()
        outcome = self._core.handle(message, self._clock.now_s(), origin)
        self._push(outcome.pushes)
        return outcome.reply

    async def _removed(
        self,
        message: Remove | Clear,
        reply: Removed,
        drops: dict[DropKey, Drop],
        pinned: dict[int, set[bytes]],
        away: list[DropKey],
        missed: Collection[DropKey],
        waiting: asyncio.Future[list[DropKey]],
    ) -> Message:
        open_keys = [*away, *(late := await waiting)]
        if self._hard is not None:
            recorded = await self._hard.record_removals((key, drops[key]) for key in open_keys)
            open_keys = [key for key in open_keys if key not in recorded]
            await self._tell_late({segment for segment, _ in missed}, message.wait_ms)
            # Many others may have pushed an order out of what a node is told when it is back: it is here, and is told now.
            open_keys += await self._tell_late({one[0] for one in late}, min(message.wait_ms, LATE_MS))
            await self._hard.end_pins(message, pinned)
        pending = {segment for segment, _ in open_keys}
        if not pending:
            return reply  # which may name nodes itself: what was too much at once
        cluster = self._core.handle(GetClusterMap(), self._clock.now_s(), Origin("", "")).reply
        assert isinstance(cluster, ClusterMap)
        names = {entry.info.segment: entry.info.node for entry in cluster.nodes}
        return msgspec.structs.replace(
            reply, pending=sorted({*reply.pending, *(names.get(one, one.hex()) for one in pending)})
        )

    async def _tell_late(self, segments: Collection[bytes], wait_ms: int) -> list[DropKey]:
        """Nodes that have announced themselves before a removal was recorded for them. Returns what they don't confirm."""
        assert self._hard is not None
        here = [segment for segment in segments if segment in self._nodes]
        pushes = [push for segment in here for push in self._hard.announced(segment)]
        keys = [(segment, drop.drop_id) for segment, drop in pushes]
        done = self._confirmations.expect(keys, min(max(wait_ms, 0), WAIT_MS_MAX) / 1000)
        self._push(pushes)
        return await done

    def evict(self, segment: bytes, want_bytes: int) -> Victims:
        """Has a node give up its next victims, as if it had asked for room. Raises NotFound."""
        need = Need(segment, self._core.epoch, want_bytes)
        outcome = self._core.handle(need, self._clock.now_s(), Origin("", "", segment))
        victims = outcome.reply
        assert isinstance(victims, Victims)
        self._push(outcome.pushes)
        if victims.drops:
            self._push([(segment, self._core.drop_of(victims))])
        return victims

    # ------------------------------------------------------------ nodes and their connections

    def connected(self, peer: Peer) -> None:
        """See Handler."""
        self._peers += 1
        self._clients[peer] = None

    def disconnected(self, peer: Peer) -> None:
        """See Handler. A node that has announced itself anew elsewhere meanwhile isn't gone."""
        self._peers -= 1
        self._clients.pop(peer, None)
        self.first.gone(peer)
        segment = peer.data.get("segment")
        if segment is not None and self._nodes.get(segment) is peer:
            del self._nodes[segment]
            log.info("node %s disconnected", peer.data["node"])
            self._push(self._core.node_disconnected(segment, self._clock.now_s()))

    def _check_segment(self, segment: bytes, peer: Peer) -> None:
        if self._nodes.get(segment) is not peer:
            allowed = "the one announced on this connection, and not since on another"
            raise InvalidParams(field="segment", value=segment.hex(), allowed=allowed)

    def _check_announce(self, message: Announce, peer: Peer) -> list[Peer]:
        """The nodes that take themselves for the only one still."""
        if peer.hello.role != "node":
            raise Forbidden(detail=f"only a node may announce a segment, not a {peer.hello.role!r}")
        earlier = peer.data.get("segment", message.info.segment)
        if earlier != message.info.segment:
            value = message.info.segment.hex()
            raise InvalidParams(field="segment", value=value, allowed="one segment a connection")
        return [one for one in self.first.peers if one.data["segment"] != message.info.segment]

    def _announced(self, message: Message, reply: Announced, peer: Peer) -> Announced:
        if isinstance(message, Announce):
            self._adopt(message, peer)
        elif isinstance(message, Heartbeat):
            alone = self._core.alone(message.segment)
            if self.first.answer(peer, alone=alone, believes=message.heard_first):
                return msgspec.structs.replace(reply, heard_first=True)
        return reply

    async def _join(self, message: Announce, peer: Peer, others: Sequence[Peer]) -> Message:
        """Of a second node: once the first one knows that it isn't alone any more."""
        await self.first.end(others, self._core.announced())
        reply = self.handle(message, peer)
        return reply if isinstance(reply, Message) else await reply

    def _adopt(self, message: Announce, peer: Peer) -> None:
        segment = message.info.segment
        earlier = self._nodes.get(segment)
        self._nodes[segment] = peer
        peer.data.update(segment=segment, node=message.info.node)
        peer.data.pop("origin", None)
        if self._hard is not None:
            self._hard.announced(segment)
            self._hard.nodes.look()
        if earlier is not peer:
            log.info("node %s announces segment %s from %s", message.info.node, segment.hex(), peer.name)
            if earlier is not None:
                earlier.close()

    def see(self, members: list[Member]) -> None:
        """Who there is in the cluster has changed."""
        self.others = [member for member in members if member.address != self.advertised]

    def tell_nodes(self) -> None:
        """Who owns what has changed: they report to others now, or to us."""
        if self._look_at_lease():
            announced = self._core.announced()
            for peer in self._nodes.values():
                peer.push(msgspec.structs.replace(announced, heard_first=self.first.told(peer)))

    def _push(self, pushes: Sequence[Push]) -> None:
        for segment, message in pushes:
            peer = self._nodes.get(segment)
            # A node that isn't there learns it by its next inventory.
            if peer is not None:
                peer.push(message)

    # ------------------------------------------------------------ ticks

    def start_ticks(self) -> None:
        """Time passes for the core from now on."""
        try:
            self._look_at_lease()
            self.first.hear()  # before anybody is taken for silent
            self._push(self._core.tick(self._clock.now_s()))
            if self._hard is not None:
                self._hard.tick(self._clock.now_s())
            self._note_changes()
        except Exception:
            log.exception("a tick failed")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S, self.start_ticks)
        if self._piece is None:
            self._work(loop)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Goes on until nothing is left, in pieces so short that no lookup waits long behind one."""
        try:
            pause_s = self._core.shards.work(self._clock.now_s())
        except Exception:
            log.exception("a piece of work failed")
            pause_s = inf
        self._piece = loop.call_later(pause_s, self._work, loop) if pause_s < inf else None

    def _note_changes(self) -> None:
        for node, segment, state in self._core.look.take_changes():
            name = state.name.lower()
            self.events.add("node", f"node {node} is {name}", node=node, segment=segment.hex(), state=name)
            if state is NodeState.LOST and (peer := self._nodes.get(segment)) in self.first.peers:
                peer.close()  # what it reports is not taken any more

    def stop_ticks(self) -> None:
        """The reverse."""
        for timer in (self._timer, self._piece):
            if timer is not None:
                timer.cancel()


def _always() -> bool:
    return True
