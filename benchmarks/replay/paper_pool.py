"""A pool on paper: the real master core and eviction policy, with nodes that hold nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import cast

from msgspec import structs

from moonpool.benchmarks.paper_node import byte_entries, node_info
from moonpool.master.core import MasterCore, Origin
from moonpool.master.eviction import EvictionPolicy
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Announce,
    Entries,
    Heartbeat,
    InventoryEnd,
    Matched,
    Message,
    Need,
    Op,
    Probed,
    PutAnswer,
    PutItem,
    PutStart,
    PutStarted,
    Renew,
    Report,
    Victims,
)
from moonpool.schemas.runs import split_runs
from moonpool.store_client.prefix import PrefixSearch

HASH_BYTES = 16
SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="replay", shard_bytes=(1,), hash_bytes=HASH_BYTES)
KEYSPACE = SPEC.digest()
NO_PARENT = bytes(HASH_BYTES)

Chain = Sequence[bytes]
"""Block hashes of a request."""


def block_hash(block: int) -> bytes:
    """The hash that stands for a trace's block id."""
    return hashlib.sha256(str(block).encode()).digest()[:HASH_BYTES]


@dataclass(slots=True)
class _Node:
    """`entries`: ops that are to be reported."""

    segment: bytes
    capacity: int
    stored: int = 0
    sequence: int = 0
    entries: list[Op] = field(default_factory=list)


class PaperPool:
    """`capacity_blocks` blocks of one byte, on nodes of equal sizes and no writer's host. Requests come one after the
    other and hold no leases between them."""

    def __init__(self, capacity_blocks: int, policy: EvictionPolicy | None, nodes: int = 1) -> None:
        self._core = MasterCore(1, 1, MasterSettings(), policy)
        self._origin = Origin("elsewhere", SPEC.tenant, None)
        self._slot = 0
        self._ticked_s = 0.0
        self._sample_mask = 0
        self._nodes: dict[bytes, _Node] = {}
        for number in range(nodes):
            segment = b"replay%02d" % number
            capacity = capacity_blocks // nodes + (number < capacity_blocks % nodes)
            node = self._nodes[segment] = _Node(segment, capacity)
            self._ask(Announce(structs.replace(node_info(segment), capacity_bytes=capacity), [SPEC], 0), 0.0)
            self._report(node, [InventoryEnd()], 0.0)
            self._heartbeat(node, 0.0)

    def serve(self, chain: Chain, now_s: float) -> int:
        """A request: how many of its leading blocks are there. All the others are there afterwards."""
        if now_s - self._ticked_s >= 1:
            for node in self._nodes.values():
                self._heartbeat(node, now_s)
            self._core.tick(now_s)
            while self._core.shards.work(now_s) < inf:
                pass
            self._ticked_s = now_s
        hit = self._match(chain, now_s)
        if hit:
            self._renew([chain[end - 1] for at, count in split_runs(0, hit) if (end := at + count)], now_s)
        if hit < len(chain):
            self._put(chain, list(split_runs(0, len(chain))), now_s)
        return hit

    def _match(self, chain: Chain, now_s: float) -> int:
        search = PrefixSearch(SPEC, chain)
        probed = cast(Probed, self._ask(search.probe(self._sample_mask, lease_ms=0), now_s))
        self._sample_mask = probed.sample_mask
        hit, gap = search.gap(probed, lease_ms=0)
        return hit if gap is None else hit + sum(cast(Matched, self._ask(gap, now_s)).ready)

    def _renew(self, deepest: list[bytes], now_s: float) -> None:
        self._ask(Renew(KEYSPACE, b"".join(deepest), lease_ms=0), now_s)

    def _put(self, chain: Chain, runs: list[tuple[int, int]], now_s: float) -> None:
        items = [
            PutItem(KEYSPACE, 0, at, chain[at - 1] if at else b"", b"".join(chain[at : at + count]), 1)
            for at, count in runs
        ]
        started = cast(PutStarted, self._ask(PutStart(items), now_s))
        for (at, _), answers, segment in zip(runs, started.answers, started.segments, strict=True):
            missing = [at + index for index, answer in enumerate(answers) if answer == PutAnswer.GO]
            if missing:
                node = self._nodes[segment]
                slots = range(self._slot, self._slot + len(missing))
                node.entries.append(_entries(chain, missing, slots))
                node.stored += len(missing)
                self._slot += len(missing)
        written = [node for node in self._nodes.values() if node.entries]
        for node in written:
            self._report(node, node.entries, now_s)
            node.entries = []
        self._renew([chain[at + count - 1] for at, count in runs], now_s)
        for node in written:
            while node.stored > node.capacity:
                need = Need(node.segment, 1, node.stored - node.capacity)
                victims = cast(Victims, self._ask(need, now_s))
                if not victims.freed_bytes:
                    break
                node.stored -= victims.freed_bytes

    def _report(self, node: _Node, ops: list[Op], now_s: float) -> None:
        self._ask(Report(node.segment, 1, node.sequence, ops), now_s)
        node.sequence += 1

    def _heartbeat(self, node: _Node, now_s: float) -> None:
        facts: dict[str, int | float] = {"low_watermark_bytes": node.capacity}
        self._ask(Heartbeat(node.segment, 1, node.capacity - node.stored, facts), now_s)

    def _ask(self, message: Message, now_s: float) -> Message:
        return self._core.handle(message, now_s, self._origin).reply

    def validate(self) -> None:
        """Asserts every invariant of the index and of the policy."""
        self._core.validate()
        assert self._core.status(0.0)["rows"] == sum(node.stored for node in self._nodes.values())


def _entries(chain: Chain, positions: list[int], slots: range) -> Entries:
    names = [chain[position] for position in positions]
    parents = [chain[position - 1] if position else NO_PARENT for position in positions]
    return byte_entries(KEYSPACE, positions, names, parents, slots)
