"""The master without I/O: requests in, answers and pushes out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from moonpool.master.drops import DropBatch
from moonpool.master.eviction import EvictionPolicy
from moonpool.master.nodes import Node, Nodes
from moonpool.master.placement import choose
from moonpool.master.shard import Shard, ShardIndex
from moonpool.master.step import Predicate, Step
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import InvalidParams, StaleEpoch
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import (
    Announce,
    Announced,
    Check,
    Clear,
    ClusterMap,
    Done,
    Drain,
    Drop,
    DropDone,
    DropList,
    Entries,
    GetClusterMap,
    GetStatus,
    Heartbeat,
    InventoryEnd,
    KeyspaceRegistered,
    Keyspaces,
    ListKeyspaces,
    Matched,
    Message,
    Need,
    NodeState,
    Probed,
    PutAnswer,
    PutStart,
    PutStarted,
    RegisterKeyspace,
    Remove,
    Removed,
    Report,
    StatusReport,
    Victims,
)
from moonpool.schemas.packed import u64s

log = logging.getLogger(__name__)

EPOCH_END = 1 << 62
"""Epochs are ms since 1970: one from here on is an error, and would leave no room to go above it."""

Push = tuple[bytes, Drop | Check]
"""(segment, message)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks: `host` shares memory with the sender, `segment` is its own where it is a node."""

    host: str
    tenant: str
    segment: bytes | None = None


@dataclass(slots=True)
class Outcome:
    """What a request leads to. `awaits`: (segment, drop id) that the nodes should confirm before the reply is
    sent; `confirmed`: those that this request confirmed."""

    reply: Message
    pushes: list[Push] = field(default_factory=list)
    awaits: tuple[tuple[bytes, int], ...] = ()
    confirmed: tuple[tuple[bytes, int], ...] = ()


class MasterCore:
    """One master's whole state. A restarted master is a new one: nodes announce, inventories fill it."""

    def __init__(
        self, shards: int, epoch: int, settings: MasterSettings, policy: EvictionPolicy | None = None
    ) -> None:
        if shards != 1:
            raise InvalidParams(field="shards", value=shards, allowed="1")
        self.epoch = epoch
        self._settings = settings
        self._shards: list[ShardIndex] = [Shard(policy)]
        self._nodes = Nodes(settings.suspect_after_s, settings.lost_after_s)
        self._drop_id = 0
        self._counts: Counter[str] = Counter()
        self._handlers: dict[type[Message], Callable[[Any, float, Origin], Outcome]] = {
            RegisterKeyspace: self._register_keyspace,
            ListKeyspaces: self._list_keyspaces,
            GetClusterMap: self._cluster_map,
            GetStatus: self._get_status,
            Drain: self._drain,
            Announce: self._announce,
            Heartbeat: self._heartbeat,
            Report: self._report,
            Need: self._need,
        }

    # ------------------------------------------------------------ events

    def handle(self, message: Message, now_s: float, origin: Origin) -> Outcome:
        """Answers a request. Raises MoonpoolError for refusals; nothing has changed then."""
        handler = self._handlers.get(type(message), self._ask)
        return handler(message, now_s, origin)

    def tick(self, now_s: float) -> list[Push]:
        """Time has passed; to be called a few times a second."""
        for node in self._nodes.tick(now_s):
            self._shard.lose(node.index)
        step = self._step(now_s, "")
        self._shard.tick(step)
        for index in self._nodes.unswept():
            if not self._shard.holds(index):
                self._nodes.swept(index)
        for node in self._nodes.forgettable(now_s):
            self._shard.forget(node.index)
            self._nodes.forget(node)
        return self._pushes(step) + self._remove_some(now_s)

    def node_disconnected(self, segment: bytes, now_s: float) -> list[Push]:
        """A node's connection is closed."""
        lost = self._nodes.disconnected(segment, now_s)
        if lost is not None:
            self._shard.lose(lost.index)
        return []

    # ------------------------------------------------------------ clients

    @property
    def _shard(self) -> ShardIndex:
        return self._shards[0]

    def _ask(self, message: Message, now_s: float, origin: Origin) -> Outcome:
        step = self._step(now_s, origin.host)
        reply = self._shard.ask(message, step)
        self._count(message, reply)
        if step.predicate is None:
            return Outcome(reply, self._pushes(step))
        pushes, awaits = self._removal(step.predicate, step.drops)
        if step.postponed:
            assert isinstance(reply, Removed)
            pending = [node.info.node for node in self._nodes.all() if node.index in step.postponed]
            reply = msgspec.structs.replace(reply, pending=pending)
        return Outcome(reply, pushes, awaits)

    def _removal(
        self, predicate: Predicate, drops: DropBatch
    ) -> tuple[list[Push], tuple[tuple[bytes, int], ...]]:
        """Tells every node, those too that are away: they learn it when they are back."""
        pushes: list[Push] = []
        for node in self._nodes.all():
            drop = Drop(
                self._next_drop_id(),
                self.epoch,
                drops.take(node.index),
                predicate.keyspace,
                predicate.hashes,
                predicate.whole_keyspace,
            )
            node.expect(drop)
            pushes.append((node.info.segment, drop))
        return pushes, tuple((segment, push.drop_id) for segment, push in pushes if isinstance(push, Drop))

    def _remove_some(self, now_s: float) -> list[Push]:
        """Goes on with large removals: those who are away learn of these too when they are back."""
        step = self._step(now_s, "")
        self._shard.remove_some(step)
        pushes: list[Push] = []
        for node in self._nodes.all():
            drops = step.drops.take(node.index)
            if drops:
                drop = self._exact_drop(drops)
                node.expect(drop)
                pushes.append((node.info.segment, drop))
        return pushes

    def _register_keyspace(self, message: RegisterKeyspace, now_s: float, origin: Origin) -> Outcome:
        self._register(message.spec)
        return Outcome(KeyspaceRegistered(message.spec.digest(), len(self._shards)))

    def _register(self, spec: KeyspaceSpec) -> None:
        for shard in self._shards:
            shard.register(spec)

    def _list_keyspaces(self, message: ListKeyspaces, now_s: float, origin: Origin) -> Outcome:
        # Every shard knows every keyspace.
        return Outcome(Keyspaces([spec for spec in self._shard.specs() if spec.tenant == message.tenant]))

    def _cluster_map(self, message: GetClusterMap, now_s: float, origin: Origin) -> Outcome:
        return Outcome(ClusterMap(self.epoch, len(self._shards), [], self._nodes.entries()))

    def _get_status(self, message: GetStatus, now_s: float, origin: Origin) -> Outcome:
        return Outcome(StatusReport(self.status(now_s)))

    def _drain(self, message: Drain, now_s: float, origin: Origin) -> Outcome:
        changed = self._nodes.drain(message.node, message.on)
        if changed:
            log.info("node %s is %s", message.node, "draining" if message.on else "no longer draining")
        return Outcome(Done(int(changed)))

    # ------------------------------------------------------------ nodes

    def _announce(self, message: Announce, now_s: float, origin: Origin) -> Outcome:
        if not 0 <= message.epoch_seen < EPOCH_END:
            raise InvalidParams(field="epoch_seen", value=message.epoch_seen, allowed=f"0 to {EPOCH_END - 1}")
        for spec in message.specs:
            spec.check()
        self._nodes.announce(message.info, now_s)
        for spec in message.specs:
            self._register(spec)
        # Without hard state this is what keeps an epoch above those of masters before this one. An equal one would
        # not do: the node would take this master for that one, and its answers to that one's drops for ours.
        if message.epoch_seen > self.epoch:
            self.epoch = message.epoch_seen + 1
        return Outcome(self._announced())

    def _announced(self) -> Announced:
        return Announced(self.epoch, round(self._settings.heartbeat_s * 1000))

    def _heartbeat(self, message: Heartbeat, now_s: float, origin: Origin) -> Outcome:
        self._check_epoch(message.epoch)
        node = self._nodes.heard(message.segment, now_s)
        node.free_bytes, node.facts = message.free_bytes, message.facts
        return Outcome(self._announced())

    def _report(self, message: Report, now_s: float, origin: Origin) -> Outcome:
        node = self._nodes.heard(message.segment, now_s)
        node.stream.check(message.stream, message.sequence)
        for op in message.ops:
            self._shard.check(op)
        step = self._step(now_s, "")
        pushes: list[Push] = []
        confirmed: list[tuple[bytes, int]] = []
        if message.sequence == 0:
            self._shard.start_inventory(node.index)
            # As of now: orders of an epoch that has passed are refused, whoever gave them.
            again = [msgspec.structs.replace(drop, epoch=self.epoch) for drop in node.outstanding.values()]
            pushes += [(message.segment, drop) for drop in again]
        node.stream.advance(message.stream, message.sequence)
        for op in message.ops:
            if isinstance(op, InventoryEnd):
                self._shard.end_inventory(node.index, step)
                self._nodes.inventory_complete(node)
            elif isinstance(op, DropDone):
                node.outstanding.pop(op.drop_id, None)
                confirmed.append((message.segment, op.drop_id))
            else:
                self._shard.apply(node.index, op, step)
                if isinstance(op, Entries) and node.complete:  # until the next heartbeat says it exactly
                    node.free_bytes -= int(u64s(op.lengths).sum())
        return Outcome(Done(len(message.ops)), pushes + self._pushes(step), confirmed=tuple(confirmed))

    def _need(self, message: Need, now_s: float, origin: Origin) -> Outcome:
        self._check_epoch(message.epoch)
        node = self._nodes.heard(message.segment, now_s)
        step = self._step(now_s, "")
        evicted = self._shard.need(node.index, message.want_bytes, step)
        self._counts["needs"] += 1
        reply = Victims(evicted.drops, evicted.freed_bytes, evicted.next_age_ms)
        return Outcome(reply, self._pushes(step))

    def _check_epoch(self, epoch: int) -> None:
        if epoch > self.epoch:
            raise StaleEpoch(epoch=self.epoch, current=epoch)

    # ------------------------------------------------------------ steps and pushes

    def _step(self, now_s: float, host: str) -> Step:
        def place_put(size_bytes: int, promised: Mapping[int, int]) -> int | None:
            here = choose(self._nodes.writable_on(host), size_bytes, promised) if host else None
            best = here or choose(self._nodes.writable(), size_bytes, promised)
            return None if best is None else best.index

        return Step(now_s, self._nodes.usable, self._nodes.impaired, self._nodes.names, place_put)

    def _pushes(self, step: Step) -> list[Push]:
        names = self._nodes.names
        pushes: list[Push] = [
            (names[segment], self._exact_drop(step.drops.take(segment))) for segment in step.drops.segments()
        ]
        for order in step.checks:
            check = Check(
                self.epoch, order.keyspace, order.rank, order.block_hash, order.slot, order.generation
            )
            pushes.append((names[order.segment], check))
        return pushes

    def _exact_drop(self, drops: list[DropList]) -> Drop:
        return Drop(self._next_drop_id(), self.epoch, drops)

    def _next_drop_id(self) -> int:
        self._drop_id += 1
        return self._drop_id

    # ------------------------------------------------------------ facts

    def _count(self, message: Message, reply: Message) -> None:
        counts = self._counts
        if isinstance(reply, Probed):
            counts["matches"] += 1
            counts["matched_blocks"] += sum(reply.ready)
        elif isinstance(reply, Matched):  # of the gap that a probe has left
            counts["matched_blocks"] += sum(reply.ready)
        elif isinstance(message, PutStart) and isinstance(reply, PutStarted):
            for answers in reply.answers:
                for answer in PutAnswer:
                    counts[f"put_{answer.name.lower()}"] += answers.count(answer)
        elif isinstance(message, (Remove, Clear)) and not message.dry_run:
            counts["removals"] += 1

    def nodes(self) -> list[Node]:
        """Every node, lost ones too."""
        return self._nodes.all()

    def status(self, now_s: float) -> dict[str, int | float | str]:
        """Flat facts for people and tests."""
        nodes = self._nodes.all()
        facts: dict[str, int | float | str] = {"epoch": self.epoch, "shards": len(self._shards)}
        for state in NodeState:
            facts[f"nodes_{state.name.lower()}"] = sum(node.state is state for node in nodes)
        facts["capacity_bytes"] = sum(node.info.capacity_bytes for node in nodes)
        facts["free_bytes"] = sum(node.free_bytes for node in nodes)
        facts["nodes_draining"] = sum(entry.draining for entry in self._nodes.entries())
        return facts | self._shard.facts() | dict(self._counts)

    def validate(self) -> None:
        """Asserts every invariant. A scan: for tests."""
        self._nodes.validate()
        for shard in self._shards:
            shard.validate()
