"""The master without I/O: requests in, answers and pushes out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from math import isfinite
from typing import Any

import msgspec

from moonpool.master.direct_puts import DirectPuts
from moonpool.master.eviction import EvictionPolicy
from moonpool.master.kv_feed import KvFeed
from moonpool.master.look import Look
from moonpool.master.node import Node
from moonpool.master.nodes import Nodes
from moonpool.master.outcome import Origin, Outcome, Push
from moonpool.master.placement import place
from moonpool.master.quotas import Spend
from moonpool.master.removal_orders import RemovalOrders
from moonpool.master.replicas.replication import Replication
from moonpool.master.report_taker import ReportTaker
from moonpool.master.request_counts import count
from moonpool.master.restorer import Restorer
from moonpool.master.shard_set import ShardSet
from moonpool.master.step import Step
from moonpool.master.tags import Tags
from moonpool.master.tenancy import check_scope
from moonpool.master.tenant_calls import TenantCalls
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import InvalidParams, StaleEpoch
from moonpool.schemas.messages import (
    Announce,
    Announced,
    Check,
    ClusterMap,
    Done,
    Drain,
    Drop,
    GetClusterMap,
    GetDrains,
    GetStatus,
    Heartbeat,
    KeyspaceRegistered,
    ListKeyspaces,
    ListTenants,
    Message,
    Need,
    NodeState,
    PutStart,
    PutStarted,
    RegisterKeyspace,
    Removed,
    Report,
    SetReplicas,
    SetTenant,
    StatusReport,
    Victims,
    Warm,
)

log = logging.getLogger(__name__)
EPOCH_END = 1 << 62
"""Epochs are ms since 1970: one from here on is an error, and would leave no room to go above it."""

__all__ = ["MasterCore", "Origin", "Outcome", "Push"]

UNTOLD = -1
"""In the place of a node's free bytes, for those who see one tenant alone."""


class MasterCore:
    """One master's whole state. A restarted master is a new one: nodes announce, inventories fill it.

    `epoch`: of this life of it. A master that is alone (`alone`) owns all shards in that epoch; else it is told which
    ones are its own, and in which epoch.
    """

    def __init__(
        self,
        shards: int,
        epoch: int,
        settings: MasterSettings,
        policy: EvictionPolicy | None = None,
        *,
        alone: bool = True,
        feed: KvFeed | None = None,
    ) -> None:
        self.epoch = epoch
        self._settings = settings
        self._alone = alone
        self._shards = ShardSet(shards, policy, feed)
        self.tenants = TenantCalls(self._shards, settings.quotas)
        self._masters: list[str] = []
        self._owners: list[int] = []
        if alone:
            for shard in range(shards):
                self._shards.own(shard, epoch)
                self._shards.loaded(shard)
        self._nodes = Nodes(settings.suspect_after_s, settings.lost_after_s)
        self._direct_puts = DirectPuts(self._shards, self._nodes, self.tenants)
        self.look = Look(self._nodes, self._shards)
        self._drop_id = 0
        self._removals = RemovalOrders(self._shards, self._nodes, self._next_drop_id)
        self.restorer = Restorer(self._shards, self._nodes, self._next_drop_id, self._step)
        self.replication = Replication(
            self._shards,
            self._nodes,
            self.tenants.left,
            settings.copy_bytes_per_s,
            settings.hot_hits_per_min,
        )
        self.report = ReportTaker(
            self._shards, self._nodes, self.restorer, self.replication, self._step, self._pushes
        ).take
        """A piece of a node's report stream: `handle` of a Report, whoever sent it."""
        self._counts: Counter[str] = Counter()
        self._question = self._step(0.0, "", 0)
        """Of all questions: they leave nothing in it, and to make one takes longer than to look for a row."""
        self.tags = Tags()
        """Which blocks requests and sessions have written."""
        self._handlers: dict[type[Message], Callable[[Any, float, Origin], Outcome]] = {
            RegisterKeyspace: self._register_keyspace,
            ListKeyspaces: lambda message, *_: Outcome(self.tenants.keyspaces(message.tenant)),
            GetClusterMap: self._cluster_map,
            GetStatus: self._get_status,
            Drain: self._drain,
            GetDrains: lambda *_: Outcome(self.replication.drains()),
            Warm: lambda message, *_: Outcome(self.replication.warm(message)),
            SetReplicas: lambda message, *_: Outcome(self.replication.set(message)),
            SetTenant: lambda message, *_: Outcome(self.tenants.set(message)),
            ListTenants: lambda *_: Outcome(self.tenants.list()),
            Announce: self._announce,
            Heartbeat: self._heartbeat,
            Report: lambda message, now_s, _: self.report(message, now_s),
            Need: self._need,
        }

    # ------------------------------------------------------------ events

    def handle(self, message: Message, now_s: float, origin: Origin) -> Outcome:
        """Answers a request. Raises MoonpoolError for refusals; nothing has changed then."""
        self.check(message, origin)
        handler = self._handlers.get(type(message), self._ask)
        return handler(message, now_s, origin)

    def answer(self, message: Message, now_s: float, origin: Origin) -> Message:
        """`handle` of a question that `check` has passed, which leaves nothing for the nodes: nothing comes so often."""
        step = self._question
        step.now_s, step.impaired = now_s, self._nodes.impaired
        step.near = partial(self._nodes.near, origin.host)
        reply = self._shards.answer(message, step)
        count(self._counts, message, reply)
        return reply

    def check(self, message: Message, origin: Origin) -> None:
        """Raises where a request names what its sender may not see: before anything else is said of it."""
        if not origin.sees_all:
            check_scope(message, origin.tenant, self._shards.specs_by_digest)

    def tick(self, now_s: float) -> list[Push]:
        """Time has passed; to be called a few times a second."""
        for node in self._nodes.tick(now_s):
            self._lose(node)
        pushes = self._pushes(self._shards.tick(self._steps(now_s)))
        for index in self._nodes.unswept():
            if not self._shards.holds(index):
                self._nodes.swept(index)
        for node in self._nodes.forgettable(now_s):
            self._shards.forget(node.index)
            self._nodes.forget(node)
        orders, steps = self.replication.tick(now_s, self._steps(now_s))
        return pushes + self._removals.go_on(self._steps(now_s)) + self._pushes(steps) + orders

    def _lose(self, node: Node) -> None:
        self._shards.lose(node.index)
        self.replication.lose(node.index)

    def node_disconnected(self, segment: bytes, now_s: float) -> list[Push]:
        """A node's connection is closed."""
        lost = self._nodes.disconnected(segment, now_s)
        if lost is not None:
            self._lose(lost)
        return []

    # ------------------------------------------------------------ shards

    @property
    def shards(self) -> ShardSet:
        """Its shards. They leave through `disown`."""
        return self._shards

    def see(self, masters: list[str], owners: list[int], epoch: int) -> None:
        """The masters of the cluster, for each shard an index into them (or -1), and as of when."""
        self._masters, self._owners = masters, owners
        self._shards.map_epoch = epoch

    def disown(self, shard: int) -> None:
        """A shard is not this master's any more: nothing is known or said of it."""
        self._shards.disown(shard)
        self.replication.disown(shard)
        for node in self._nodes.all():
            node.disown(shard)

    # ------------------------------------------------------------ clients

    def _ask(self, message: Message, now_s: float, origin: Origin) -> Outcome:
        if isinstance(message, PutStart) and self.tenants.limited:
            books = self.tenants.books(now_s, self._steps(now_s))
            step_of = partial(self._step, now_s, origin.host, spend=self.tenants.spend(books))
            reply, steps = self._shards.ask(message, step_of)
            steps = [*steps, *books.steps.values()]
        else:
            reply, steps = self._shards.ask(message, self._steps(now_s, origin.host))
        count(self._counts, message, reply)
        if isinstance(message, PutStart) and isinstance(reply, PutStarted):
            self.tags.note(message, reply, origin.tenant)
            reply = self._direct_puts.allow(message, reply, origin.host)
        for index in frozenset().union(*(step.failed for step in steps)):
            if (node := self._nodes.at(index)) is not None:
                node.put_failed(origin.host, now_s)
        removals = [step for step in steps if step.predicate is not None]
        pushes = self._pushes([step for step in steps if step.predicate is None])
        if not removals:
            return Outcome(reply, pushes)
        dropped = [push for step in removals for push in self._removals.of(step)]
        postponed = set().union(*(step.postponed for step in removals))
        if postponed:
            assert isinstance(reply, Removed)
            pending = [node.info.node for node in self._nodes.all() if node.index in postponed]
            reply = msgspec.structs.replace(reply, pending=pending)
        awaits = tuple((segment, drop.drop_id) for segment, drop in dropped)
        return Outcome(reply, [*pushes, *dropped], awaits)

    def _register_keyspace(self, message: RegisterKeyspace, now_s: float, origin: Origin) -> Outcome:
        self._shards.register(message.spec)
        return Outcome(KeyspaceRegistered(message.spec.digest(), self._shards.total))

    def _cluster_map(self, message: GetClusterMap, now_s: float, origin: Origin) -> Outcome:
        entries, total = self._nodes.entries(), self._shards.total
        if not origin.sees_all:  # how full a node is tells of others
            entries = [msgspec.structs.replace(entry, free_bytes=UNTOLD) for entry in entries]
        if self._alone:
            return Outcome(ClusterMap(self.epoch, total, [], entries, [0] * total))
        return Outcome(ClusterMap(self._shards.map_epoch, total, self._masters, entries, self._owners))

    def _get_status(self, message: GetStatus, now_s: float, origin: Origin) -> Outcome:
        return Outcome(
            StatusReport(self.status(now_s) if origin.sees_all else self.tenants.facts(origin.tenant))
        )

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
        self.replication.announced(self._nodes.announce(message.info, now_s))
        for spec in message.specs:
            self._shards.register(spec)
        # Without hard state this is what keeps an epoch above those of masters before this one. An equal one would
        # not do: the node would take this master for that one, and its answers to that one's drops for ours.
        if self._alone and message.epoch_seen > self.epoch:
            self.epoch = message.epoch_seen + 1
            self._shards.renumber(self.epoch)
            for node in self._nodes.all():
                node.obeys.clear()
        return Outcome(self.announced())

    def alone(self, segment: bytes) -> bool:
        """Whether no other node can hold anything, and what that one holds is known. One that was remembered counts too."""
        node = self._nodes.get(segment)
        return node is not None and len(self._nodes) == 1 and node.state is NodeState.LIVE and not node.naming

    def announced(self) -> Announced:
        """What nodes are told of this master, when they ask and when something has changed."""
        heartbeat_ms = round(self._settings.heartbeat_s * 1000)
        return Announced(self.epoch, heartbeat_ms, self._shards.total, self._shards.claims, self._masters)

    def _heartbeat(self, message: Heartbeat, now_s: float, origin: Origin) -> Outcome:
        self._check_epoch(message.epoch)
        for fact, value in message.facts.items():
            if not isfinite(value):
                raise InvalidParams(field=f"facts[{fact!r}]", value=value, allowed="finite numbers")
        node = self._nodes.heard(message.segment, now_s)
        node.free_bytes, node.facts = message.free_bytes, message.facts
        return Outcome(self.announced())

    def _need(self, message: Need, now_s: float, origin: Origin) -> Outcome:
        self._check_epoch(message.epoch)
        node = self._nodes.heard(message.segment, now_s)
        steps, first = self._steps(now_s), self.tenants.over()
        evicted = self._shards.need(node.index, message.want_bytes, now_s, steps, first)
        self._counts["needs"] += 1
        node.gained(evicted.freed_bytes)
        claims = self._shards.claims if evicted.drops else []
        reply = Victims(evicted.drops, evicted.freed_bytes, evicted.next_age_ms, claims)
        return Outcome(reply, self._pushes(evicted.steps))

    def drop_of(self, victims: Victims) -> Drop:
        """The order that has a node drop victims that it did not ask for."""
        return Drop(self._next_drop_id(), self.epoch, victims.drops)

    def _check_epoch(self, epoch: int) -> None:
        if epoch > self.epoch:
            raise StaleEpoch(epoch=self.epoch, current=epoch)

    # ------------------------------------------------------------ steps and pushes

    def _step(self, now_s: float, host: str, shard: int, spend: Spend | None = None) -> Step:
        def place_put(size_bytes: int) -> int | None:
            node = place(self._nodes, size_bytes, self._shards.promised(), host, now_s)
            return None if node is None else node.index

        nodes = self._nodes
        step = Step(now_s, nodes.usable, nodes.impaired, nodes.names, place_put, shard, spend=spend)
        step.near, step.staying = partial(nodes.near, host), nodes.staying
        return step

    def _steps(self, now_s: float, host: str = "") -> Callable[[int], Step]:
        return partial(self._step, now_s, host)

    def _pushes(self, steps: Iterable[Step]) -> list[Push]:
        names = self._nodes.names
        pushes: list[Push] = []
        for step in steps:
            for segment in step.drops.segments():
                epoch, drops = self._shards.epoch(step.shard), step.drops.take(segment)
                drop = Drop(self._next_drop_id(), epoch, drops, shard=step.shard)
                pushes.append((names[segment], drop))
            for order in step.checks:
                epoch, what = self._shards.epoch(step.shard), order[1:]
                pushes.append((names[order.segment], Check(epoch, *what, step.shard)))
        return pushes

    def _next_drop_id(self) -> int:
        self._drop_id += 1
        return self._drop_id

    # ------------------------------------------------------------ facts

    def status(self, now_s: float) -> dict[str, int | float | str]:
        """Flat facts for people and tests."""
        nodes = self._nodes.all()
        facts: dict[str, int | float | str] = {
            "epoch": self.epoch,
            "shards": self._shards.total,
            "shards_owned": len(self._shards),
            "masters": max(1, len(self._masters)),
        }
        for state in NodeState:
            facts[f"nodes_{state.name.lower()}"] = sum(node.state is state for node in nodes)
        facts["capacity_bytes"] = sum(node.info.capacity_bytes for node in nodes)
        facts["free_bytes"] = sum(node.free_bytes for node in nodes)
        facts["nodes_draining"] = sum(entry.draining for entry in self._nodes.entries())
        return facts | self._shards.facts() | dict(self._counts) | self.replication.facts()

    def validate(self) -> None:
        """Asserts every invariant. A scan: for tests."""
        self._nodes.validate()
        self._shards.validate()
        self.replication.validate()
