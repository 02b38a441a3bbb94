"""A pool on paper: the real master core and eviction policy, with one node that holds nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import inf
from typing import cast

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
SEGMENT = b"replayed"
SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="replay", shard_bytes=(1,), hash_bytes=HASH_BYTES)
KEYSPACE = SPEC.digest()
NO_PARENT = bytes(HASH_BYTES)

Chain = Sequence[bytes]
"""Block hashes of a request."""


def block_hash(block: int) -> bytes:
    """The hash that stands for a trace's block id."""
    return hashlib.sha256(str(block).encode()).digest()[:HASH_BYTES]


class PaperPool:
    """`capacity_blocks` blocks of one byte. Requests come one after the other and hold no leases between them."""

    def __init__(self, capacity_blocks: int, policy: EvictionPolicy | None) -> None:
        self._capacity = capacity_blocks
        self._core = MasterCore(1, 1, MasterSettings(), policy)
        self._origin = Origin("nowhere", SPEC.tenant, SEGMENT)
        self._stored = 0
        self._slot = 0
        self._sequence = 0
        self._ticked_s = 0.0
        self._sample_mask = 0
        self._ask(Announce(node_info(SEGMENT), [SPEC], 0), 0.0)
        self._report([InventoryEnd()], 0.0)
        self._heartbeat(0.0)

    def serve(self, chain: Chain, now_s: float) -> int:
        """A request: how many of its leading blocks are there. All the others are there afterwards."""
        if now_s - self._ticked_s >= 1:
            self._heartbeat(now_s)
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
        answers = b"".join(cast(PutStarted, self._ask(PutStart(items), now_s)).answers)
        missing = [position for position, answer in enumerate(answers) if answer == PutAnswer.GO]
        if missing:
            slots = range(self._slot, self._slot + len(missing))
            self._report([_entries(chain, missing, slots)], now_s)
            self._slot += len(missing)
            self._stored += len(missing)
        self._renew([chain[at + count - 1] for at, count in runs], now_s)
        while self._stored > self._capacity:
            victims = cast(Victims, self._ask(Need(SEGMENT, 1, self._stored - self._capacity), now_s))
            if not victims.freed_bytes:
                break
            self._stored -= victims.freed_bytes

    def _report(self, ops: list[Op], now_s: float) -> None:
        self._ask(Report(SEGMENT, 1, self._sequence, ops), now_s)
        self._sequence += 1

    def _heartbeat(self, now_s: float) -> None:
        self._ask(Heartbeat(SEGMENT, 1, 1 << 40), now_s)

    def _ask(self, message: Message, now_s: float) -> Message:
        return self._core.handle(message, now_s, self._origin).reply

    def validate(self) -> None:
        """Asserts every invariant of the index and of the policy."""
        self._core.validate()
        assert self._core.status(0.0)["rows"] == self._stored


def _entries(chain: Chain, positions: list[int], slots: range) -> Entries:
    names = [chain[position] for position in positions]
    parents = [chain[position - 1] if position else NO_PARENT for position in positions]
    return byte_entries(KEYSPACE, positions, names, parents, slots)
