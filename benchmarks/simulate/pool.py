"""A cluster's pool on paper: the real core, and hosts whose nodes hold nothing but names.

One core stands for all shards: which blocks are there doesn't depend on how the index is cut. What the cut costs is
the world's to reckon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import cast

from moonpool.benchmarks.paper_node import byte_entries
from moonpool.master.core import MasterCore, Origin, Push
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Announce,
    Copied,
    CopyOrder,
    Drop,
    DropList,
    Entries,
    Heartbeat,
    InventoryEnd,
    Locate,
    Located,
    Matched,
    Message,
    Need,
    NodeInfo,
    Op,
    Probed,
    PutAnswer,
    PutItem,
    PutStart,
    PutStarted,
    Renew,
    Report,
    RunSlice,
    Status,
    Victims,
)
from moonpool.schemas.packed import split_hashes, u16s, u32s, u64s
from moonpool.schemas.runs import split_runs
from moonpool.store_client.prefix import PrefixSearch

HASH_BYTES = 16
SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="simulate", shard_bytes=(1,), hash_bytes=HASH_BYTES)
KEYSPACE = SPEC.digest()
NO_PARENT = bytes(HASH_BYTES)
BLOCK_BYTES = 80 << 20
"""What one of these blocks stands for: 512 tokens of a large model."""

SETTINGS = MasterSettings(
    suspect_after_s=1e9, copy_bytes_per_s=MasterSettings().copy_bytes_per_s // BLOCK_BYTES
)
"""Paper nodes say when they go; nobody simulates heartbeats for that. A block is one byte here, for copies too."""

INVENTORY_BLOCKS = 2048
LEASE_MS = 3000
EVICT_SHARE = 0.02
"""How much of itself a full node frees at once."""

Chain = Sequence[bytes]

Moved = tuple[int, int, int]
"""(source, target, blocks) of a copy that one host has made of another's blocks."""


@dataclass(slots=True)
class Block:
    """What a node knows of a block that it holds."""

    position: int
    parent: bytes
    slot: int


@dataclass(slots=True)
class Host:
    """One host's node. `sequence`: of its report stream."""

    number: int
    capacity_blocks: int
    sequence: int = 0
    held: dict[bytes, Block] = field(default_factory=dict)
    next_slot: int = 0
    alive: bool = True

    @property
    def segment(self) -> bytes:
        """Its id."""
        return self.number.to_bytes(4, "big")

    @property
    def origin(self) -> Origin:
        """Who asks when it or an engine on it asks."""
        return Origin(f"host{self.number}", SPEC.tenant, self.segment)

    def hold(self, name: bytes, position: int, parent: bytes) -> Block:
        """Takes a block into its next slot."""
        block = self.held[name] = Block(position, parent, self.next_slot)
        self.next_slot += 1
        return block

    def info(self) -> NodeInfo:
        """A node without doors."""
        return NodeInfo(
            node=f"host{self.number}",
            segment=self.segment,
            host=f"host{self.number}",
            rpc_address="",
            data_address="",
            unix_path="",
            segment_path="",
            capacity_bytes=self.capacity_blocks,
            page_bytes=1 << 20,
        )


class PaperPool:
    """`hosts` nodes of `host_blocks` blocks of one byte."""

    def __init__(self, hosts: int, host_blocks: int) -> None:
        self._core = MasterCore(1, 1, SETTINGS)
        self.hosts = [Host(number, host_blocks) for number in range(hosts)]
        self._sample_mask = 0
        for host in self.hosts:
            self.join(host, 0.0)

    # ------------------------------------------------------------ what engines ask

    def match(self, chain: Chain, host: Host, now_s: float) -> int:
        """The longest ready prefix in blocks."""
        search = PrefixSearch(SPEC, chain)
        probed = cast(Probed, self._ask(search.probe(self._sample_mask, lease_ms=LEASE_MS), host, now_s))
        self._sample_mask = probed.sample_mask
        hit, gap = search.gap(probed, lease_ms=LEASE_MS)
        return hit if gap is None else hit + sum(cast(Matched, self._ask(gap, host, now_s)).ready)

    def renew(self, chain: Chain, blocks: int, host: Host, now_s: float) -> None:
        """These are in use."""
        deepest = [chain[at + count - 1] for at, count in split_runs(0, blocks)]
        self._ask(Renew(KEYSPACE, b"".join(deepest)), host, now_s)

    def locate(self, chain: Chain, first: int, end: int, host: Host, now_s: float) -> Counter[int]:
        """How many of those blocks each host has for the reader; some may have gone since the match."""
        runs = [RunSlice(chain[at + n - 1], at, n) for at, n in split_runs(first, end - first)]
        reply = cast(Located, self._ask(Locate(KEYSPACE, 0, runs), host, now_s))
        names = [int.from_bytes(segment, "big") for segment in reply.segments]
        there = u16s(reply.which)[u64s(reply.generations) > 0]
        return Counter(names[which] for which in there.tolist())

    def put(self, chain: Chain, host: Host, now_s: float) -> list[int]:
        """Writes what is missing; returns its positions."""
        items = [
            PutItem(KEYSPACE, 0, at, chain[at - 1] if at else b"", b"".join(chain[at : at + n]), 1)
            for at, n in split_runs(0, len(chain))
        ]
        started = cast(PutStarted, self._ask(PutStart(items), host, now_s))
        targets: dict[bytes, list[int]] = {}
        for item, answers, segment in zip(items, started.answers, started.segments, strict=True):
            go = [item.position + n for n, answer in enumerate(answers) if answer == PutAnswer.GO]
            if go:
                targets.setdefault(segment, []).extend(go)
        for segment, positions in targets.items():
            self._commit(self._host(segment), chain, positions, now_s)
        self.renew(chain, len(chain), host, now_s)
        return sorted(position for positions in targets.values() for position in positions)

    def preload(self, chain: Chain, host: Host) -> None:
        """Writes blocks without asking: what was put before the simulation begins."""
        self._commit(host, chain, [at for at, name in enumerate(chain) if name not in host.held], 0.0)

    # ------------------------------------------------------------ nodes

    def lose(self, host: Host, now_s: float) -> None:
        """A host falls silent."""
        host.alive = False
        self._core.node_disconnected(host.segment, now_s)

    def join(self, host: Host, now_s: float) -> int:
        """A host is here (again), with all it holds: so many blocks."""
        host.alive = True
        host.sequence = 0
        self._ask(Announce(host.info(), [SPEC], 0), host, now_s)
        held = list(host.held.items())
        for first in range(0, max(1, len(held)), INVENTORY_BLOCKS):
            part = held[first : first + INVENTORY_BLOCKS]
            self._report(host, [_entries(part)] if part else [], now_s)
        self._report(host, [InventoryEnd()], now_s)
        self._say_free(host, now_s)
        return len(held)

    def tick(self, now_s: float) -> list[Moved]:
        """Time has passed. Returns what hosts have copied from each other on the master's orders."""
        pushes = self._core.tick(now_s)
        while self._core.shards.work(now_s) < inf:
            pass
        self._obey_drops(pushes)
        return [
            self._copy(self._host(segment), push, now_s)
            for segment, push in pushes
            if isinstance(push, CopyOrder)
        ]

    def _copy(self, host: Host, order: CopyOrder, now_s: float) -> Moved:
        fresh, statuses = [], bytearray()
        names = split_hashes(order.hashes, HASH_BYTES)
        parents = split_hashes(order.parents, HASH_BYTES)
        for name, position, parent in zip(names, u32s(order.positions).tolist(), parents, strict=True):
            room = host.alive and len(host.held) < host.capacity_blocks and name not in host.held
            statuses.append(Status.OK if room else Status.NO_SPACE)
            if room:
                fresh.append((name, host.hold(name, position, parent)))
        done: list[Op] = [_entries(fresh)] if fresh else []
        self._report(host, [*done, Copied(order.order, bytes(statuses))], now_s)
        self._say_free(host, now_s)
        return int.from_bytes(order.source.segment, "big"), host.number, len(fresh)

    def _commit(self, host: Host, chain: Chain, positions: Sequence[int], now_s: float) -> None:
        fresh = []
        for position in positions:
            parent = chain[position - 1] if position else NO_PARENT
            fresh.append((chain[position], host.hold(chain[position], position, parent)))
        if fresh:
            self._report(host, [_entries(fresh)], now_s)
        if len(host.held) > host.capacity_blocks:
            self._make_room(host, now_s)

    def _make_room(self, host: Host, now_s: float) -> None:
        want = len(host.held) - round(host.capacity_blocks * (1 - EVICT_SHARE))
        while want > 0:
            victims = cast(Victims, self._ask(Need(host.segment, 1, want), host, now_s))
            freed = self._drop(host, victims.drops)
            want -= freed
            if not freed:
                break
        self._say_free(host, now_s)

    def _say_free(self, host: Host, now_s: float) -> None:
        free_blocks = max(0, host.capacity_blocks - len(host.held))
        self._ask(Heartbeat(host.segment, 1, free_blocks), host, now_s)

    def _drop(self, host: Host, drops: Iterable[DropList]) -> int:
        freed = 0
        for drop in drops:
            slots = u32s(drop.slots).tolist()
            for name, slot in zip(split_hashes(drop.hashes, HASH_BYTES), slots, strict=True):
                block = host.held.get(name)
                if block is not None and block.slot == slot:
                    del host.held[name]
                    freed += 1
        return freed

    def _report(self, host: Host, ops: list[Op], now_s: float) -> None:
        self._ask(Report(host.segment, 1, host.sequence, ops), host, now_s)
        host.sequence += 1

    def _host(self, segment: bytes) -> Host:
        return self.hosts[int.from_bytes(segment, "big")]

    def _ask(self, message: Message, host: Host, now_s: float) -> Message:
        outcome = self._core.handle(message, now_s, host.origin)
        self._obey_drops(outcome.pushes)
        return outcome.reply

    def _obey_drops(self, pushes: Iterable[Push]) -> None:
        for segment, push in pushes:
            if isinstance(push, Drop):
                self._drop(self._host(segment), push.drops)

    def validate(self) -> None:
        """Asserts every invariant of the core, and that no node holds more than it can."""
        self._core.validate()
        for host in self.hosts:
            assert len(host.held) <= host.capacity_blocks, "a node holds more than it can"


def _entries(blocks: Sequence[tuple[bytes, Block]]) -> Entries:
    return byte_entries(
        KEYSPACE,
        [block.position for _, block in blocks],
        [name for name, _ in blocks],
        [block.parent for _, block in blocks],
        [block.slot for _, block in blocks],
    )
