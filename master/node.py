"""One segment as a master sees it: its streams, and the drops that it has yet to confirm."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import structs

from moonpool.master.streams import ReportStream
from moonpool.schemas.messages import Drop, NodeInfo, NodeState

log = logging.getLogger(__name__)

FLAPS_MAX = 3
OUTSTANDING_MAX = 64
LOW_SHARE = 0.9
"""Filled up to here, a node that doesn't say its low watermark."""

FULL_SHARE = 16
"""A full node has up to this part of its memory free beyond what its watermark leaves: evictions overshoot."""

SHUNS_MAX = 64
"""Hosts of writers, of each node."""

SHUNNED_S_MAX = 30.0
SHUN_TOLD_S = 8.0
"""The log says so from here on."""

OBEYED_MAX = 4096
ShardOrder = tuple[int, int, int]
"""Shard and order, see Drop."""


@dataclass(slots=True)
class Shun:
    """Puts fail, until `until_s` and for `for_s` seconds."""

    for_s: float = 0.0
    until_s: float = 0.0


@dataclass(slots=True, eq=False)
class Node:
    """One segment. `named`: shards whose inventory has ended since it (re)joined; `complete`: all have. `naming`: those
    whose inventory is under way. `outstanding`:
    drops that somebody waits for, by id, sent again when the stream of their shard begins. `retold`: ids of those that
    were asked before the node announced itself. `obeyed`: orders that the node has said it is done with, oldest first:
    they are never given again."""

    info: NodeInfo
    index: int
    state: NodeState
    heard_s: float
    connected: bool = True
    complete: bool = False
    free_bytes: int = 0
    rewritten: float = 0.0  # how often its memory was written anew, see Nodes.stored
    shuns: dict[str, Shun] = field(default_factory=dict)  # by host of the writers
    facts: dict[str, int | float] = field(default_factory=dict)
    flaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=FLAPS_MAX))
    named: set[int] = field(default_factory=set)
    naming: set[int] = field(default_factory=set)
    obeys: set[int] = field(default_factory=set)  # shards whose owner's epoch it has seen: it obeys no older
    streams: dict[int, ReportStream] = field(default_factory=dict)
    outstanding: dict[int, Drop] = field(default_factory=dict)
    retold: set[int] = field(default_factory=set)
    obeyed: dict[ShardOrder, None] = field(default_factory=dict)

    def gained(self, size_bytes: int) -> None:
        """So much more is free, or less: until the next heartbeat says it exactly. Who places puts would else take a node that
        evicts as much as is put for one that gets fuller and fuller."""
        if self.complete:
            self.free_bytes += size_bytes

    @property
    def kept_free_bytes(self) -> int:
        """What its low watermark leaves free: it evicts down to there."""
        capacity_bytes = self.info.capacity_bytes
        return capacity_bytes - int(self.facts.get("low_watermark_bytes", LOW_SHARE * capacity_bytes))

    def appeal(self, promised_bytes: int, host: str, now_s: float) -> tuple[bool, bool, float, bytes]:
        """How well a put of that host goes here, to be compared with others: whether they don't fail; whether there is room;
        the more room the better, or else the less of the memory was written anew."""
        sound = not self.is_shunned(host, now_s)
        capacity_bytes = self.info.capacity_bytes
        free_bytes = self.free_bytes - promised_bytes
        if free_bytes > self.kept_free_bytes + capacity_bytes // FULL_SHARE:
            return sound, True, free_bytes, self.info.segment
        return sound, False, -(self.rewritten + promised_bytes / max(1, capacity_bytes)), self.info.segment

    def is_shunned(self, host: str, now_s: float) -> bool:
        """Whether puts of that host go elsewhere, where they can."""
        shun = self.shuns.get(host)
        return shun is not None and now_s < shun.until_s

    def put_failed(self, host: str, now_s: float) -> None:
        """A writer there gave up a put: the next ones go elsewhere for a second, and twice as long where that was no better
        when the time was over. Others may well reach this node, so each host finds out for itself."""
        shun = self.shuns.get(host)
        if shun is None:
            if len(self.shuns) == SHUNS_MAX:
                del self.shuns[next(iter(self.shuns))]
            shun = self.shuns[host] = Shun()
        if now_s < shun.until_s:
            return
        no_better = now_s - shun.until_s <= shun.for_s
        shun.for_s = min(SHUNNED_S_MAX, 2 * shun.for_s) if no_better else 1.0
        shun.until_s = now_s + shun.for_s
        if shun.for_s == SHUN_TOLD_S:
            log.warning("puts from %s to node %s go on failing", host or "somewhere", self.info.node)

    def stream(self, shard: int) -> ReportStream:
        """The one ordered stream between the segment and that shard."""
        stream = self.streams.get(shard)
        if stream is None:
            stream = self.streams[shard] = ReportStream()
        return stream

    def cut_streams(self) -> None:
        """Only new streams will do."""
        self.streams.clear()

    def disown(self, shard: int) -> None:
        """The shard is somebody else's now."""
        self.streams.pop(shard, None)
        self.named.discard(shard)
        self.obeys.discard(shard)
        for drop in self.outstanding_of(shard):
            del self.outstanding[drop.drop_id]

    def outstanding_of(self, shard: int) -> list[Drop]:
        """Drops that are not confirmed, oldest first."""
        return [drop for drop in self.outstanding.values() if drop.shard == shard]

    def retell(self, shard: int, epoch: int, next_generation: int) -> list[Drop]:
        """What is sent when the stream of a shard begins, in the epoch of now: orders of one that has passed are
        refused, whoever gave them. What is begun from `next_generation` on was put after those that were asked before
        the node was here: they don't mean it."""
        for drop in self.outstanding_of(shard):
            before = drop.before or (next_generation if drop.drop_id in self.retold else 0)
            self.outstanding[drop.drop_id] = structs.replace(drop, epoch=epoch, before=before)
        return self.outstanding_of(shard)

    def done(self, drop_id: int) -> None:
        """The node has confirmed this one."""
        drop = self.outstanding.pop(drop_id, None)
        if drop is not None:
            self._note_obeyed((drop.shard, *drop.order))

    def has_obeyed(self, shard: int, orders: Iterable[tuple[int, int]]) -> list[int]:
        """The node has done these, whoever gave them. Returns ids of the drops that this confirms."""
        for order in orders:
            self._note_obeyed((shard, *order))
        found = [one.drop_id for one in self.outstanding_of(shard) if (shard, *one.order) in self.obeyed]
        for drop_id in found:
            del self.outstanding[drop_id]
        return found

    def _note_obeyed(self, order: ShardOrder) -> None:
        if order[1:] == (0, 0):
            return
        self.obeyed[order] = None
        if len(self.obeyed) > OBEYED_MAX:
            del self.obeyed[next(iter(self.obeyed))]

    def expect(self, drop: Drop) -> None:
        """The node must confirm this one, however long it is away; at most OUTSTANDING_MAX of a shard."""
        self.outstanding[drop.drop_id] = drop
        waiting = self.outstanding_of(drop.shard)
        if len(waiting) > OUTSTANDING_MAX:
            del self.outstanding[waiting[0].drop_id]
            log.warning("node %s is away for too many removals; the oldest is given up", self.info.node)
