"""A cluster's pool on paper: the real core of each shard, and hosts whose nodes hold nothing but names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from moonpool.master.core import MasterCore, Origin
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Announce,
    Drop,
    DropList,
    Entries,
    Heartbeat,
    InventoryEnd,
    Locate,
    Located,
    Match,
    Matched,
    Message,
    Need,
    NodeInfo,
    Op,
    PutAnswer,
    PutItem,
    PutStart,
    PutStarted,
    Renew,
    Report,
    RunSlice,
    Victims,
)
from moonpool.schemas.packed import pack_u16, pack_u32, pack_u64, split_hashes, u16s, u32s
from moonpool.schemas.runs import shard_of, split_runs

HASH_BYTES = 16
SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="simulate", shard_bytes=(1,), hash_bytes=HASH_BYTES)
KEYSPACE = SPEC.digest()
NO_PARENT = bytes(HASH_BYTES)
SETTINGS = MasterSettings(suspect_after_s=1e9)
"""Paper nodes say when they go; nobody simulates heartbeats for that."""

INVENTORY_BLOCKS = 2048
EVICT_SHARE = 0.02
"""How much of itself a full node frees at once."""

Chain = Sequence[bytes]


@dataclass(slots=True)
class Block:
    """What a node knows of a block that it holds."""

    position: int
    parent: bytes
    slot: int
    shard: int


@dataclass(slots=True)
class Host:
    """One host's node. `sequences`: of its report stream to each shard."""

    number: int
    capacity_blocks: int
    sequences: list[int]
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
    """`hosts` nodes of `host_blocks` blocks of one byte, under `shards` cores."""

    def __init__(self, shards: int, hosts: int, host_blocks: int) -> None:
        self._cores = [MasterCore(1, 1, SETTINGS) for _ in range(shards)]
        self.hosts = [Host(number, host_blocks, [0] * shards) for number in range(hosts)]
        self.evicted_blocks = 0
        for host in self.hosts:
            self.join(host, 0.0)

    @property
    def shards(self) -> int:
        """How many cores there are."""
        return len(self._cores)

    def runs(self, chain: Chain, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(shard, position, count) of each run's part of those blocks. A part that begins inside a run belongs
        to the shard of that run's first block."""
        for at, length in split_runs(first, count):
            root = next(start for start, n in split_runs(0, at + 1) if start + n > at)
            yield shard_of(KEYSPACE, chain[root], self.shards), at, length

    # ------------------------------------------------------------ what engines ask

    def match(self, chain: Chain, host: Host, now_s: float) -> int:
        """The longest ready prefix in blocks, over all shards."""
        hit = 0
        answers = []
        for shard, at, count in self.runs(chain, 0, len(chain)):
            message = Match(KEYSPACE, [(at, b"".join(chain[at : at + count]))], lease_ms=3000)
            reply = cast(Matched, self._ask(shard, message, host, now_s))
            answers.append((at, count, reply.ready[0]))
        for at, count, ready in answers:
            hit = at + ready
            if ready < count:
                break
        return hit

    def renew(self, chain: Chain, blocks: int, host: Host, now_s: float) -> None:
        """These are in use."""
        for shard, at, count in self.runs(chain, 0, blocks):
            self._ask(shard, Renew(KEYSPACE, chain[at + count - 1]), host, now_s)

    def locate(self, chain: Chain, first: int, end: int, host: Host, now_s: float) -> Counter[int]:
        """How many of those blocks each host has for the reader: a block's first copy."""
        found: Counter[int] = Counter()
        for shard, at, count in self.runs(chain, first, end - first):
            message = Locate(KEYSPACE, 0, [RunSlice(chain[at + count - 1], at, count)])
            reply = cast(Located, self._ask(shard, message, host, now_s))
            names = [int.from_bytes(segment, "big") for segment in reply.segments]
            found.update(names[which] for which in u16s(reply.which).tolist())
        return found

    def put(self, chain: Chain, host: Host, now_s: float) -> Counter[int]:
        """Writes what is missing; returns how many blocks each shard's master got to hear of."""
        written: Counter[int] = Counter()
        targets: dict[bytes, list[tuple[int, int]]] = {}
        for shard, at, count in self.runs(chain, 0, len(chain)):
            parent = chain[at - 1] if at else b""
            item = PutItem(KEYSPACE, 0, at, parent, b"".join(chain[at : at + count]), 1)
            reply = cast(PutStarted, self._ask(shard, PutStart([item]), host, now_s))
            go = [at + n for n, answer in enumerate(reply.answers[0]) if answer == PutAnswer.GO]
            if go:
                targets.setdefault(reply.segments[0], []).extend((shard, position) for position in go)
                written[shard] += len(go)
        for segment, blocks in targets.items():
            self._commit(self._host(segment), chain, blocks, now_s)
        self.renew(chain, len(chain), host, now_s)
        return written

    def preload(self, chain: Chain, host: Host) -> None:
        """Writes blocks without asking: what was put before the simulation begins."""
        blocks = [
            (shard, position)
            for shard, at, count in self.runs(chain, 0, len(chain))
            for position in range(at, at + count)
        ]
        fresh = [(shard, position) for shard, position in blocks if chain[position] not in host.held]
        self._commit(host, chain, fresh, 0.0)

    # ------------------------------------------------------------ nodes

    def lose(self, host: Host, now_s: float) -> None:
        """A host falls silent, for every master at once."""
        host.alive = False
        for core in self._cores:
            core.node_disconnected(host.segment, now_s)

    def join(self, host: Host, now_s: float) -> Counter[int]:
        """A host is here (again), with all it holds. Returns the blocks each shard was told of."""
        host.alive = True
        told: Counter[int] = Counter()
        pages: list[list[tuple[bytes, Block]]] = [[] for _ in self._cores]
        for name, block in host.held.items():
            pages[block.shard].append((name, block))
        for shard, blocks in enumerate(pages):
            self._ask(shard, Announce(host.info(), [SPEC], 0), host, now_s)
            host.sequences[shard] = 0
            told[shard] += len(blocks)
            for first in range(0, max(1, len(blocks)), INVENTORY_BLOCKS):
                part = blocks[first : first + INVENTORY_BLOCKS]
                self._report(host, shard, [_entries(part)] if part else [], now_s)
            self._report(host, shard, [InventoryEnd()], now_s)
            self._say_free(host, shard, now_s)
        return told

    def tick(self, now_s: float) -> None:
        """Time has passed."""
        for core in self._cores:
            core.tick(now_s)

    def _commit(self, host: Host, chain: Chain, blocks: list[tuple[int, int]], now_s: float) -> None:
        by_shard: dict[int, list[tuple[bytes, Block]]] = {}
        for shard, position in blocks:
            block = Block(position, chain[position - 1] if position else NO_PARENT, host.next_slot, shard)
            host.next_slot += 1
            host.held[chain[position]] = block
            by_shard.setdefault(shard, []).append((chain[position], block))
        for shard, part in by_shard.items():
            self._report(host, shard, [_entries(part)], now_s)
        if len(host.held) > host.capacity_blocks:
            self._make_room(host, now_s)

    def _make_room(self, host: Host, now_s: float) -> None:
        """As a node does it: the shard whose next victim is oldest gives first."""
        want = len(host.held) - round(host.capacity_blocks * (1 - EVICT_SHARE))
        ages = dict.fromkeys(range(self.shards), 1 << 60)
        while want > 0 and ages:
            shard = max(ages, key=ages.__getitem__)
            part = max(1, want // self.shards)
            victims = cast(Victims, self._ask(shard, Need(host.segment, 1, part), host, now_s))
            freed = self._drop(host, victims.drops)
            self.evicted_blocks += freed
            want -= freed
            ages[shard] = victims.next_age_ms
            if victims.next_age_ms < 0 or not freed:
                del ages[shard]
        for shard in range(self.shards):
            self._say_free(host, shard, now_s)

    def _say_free(self, host: Host, shard: int, now_s: float) -> None:
        free_blocks = max(0, host.capacity_blocks - len(host.held))
        self._ask(shard, Heartbeat(host.segment, 1, free_blocks), host, now_s)

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

    def _report(self, host: Host, shard: int, ops: list[Op], now_s: float) -> None:
        self._ask(shard, Report(host.segment, 1, host.sequences[shard], ops), host, now_s)
        host.sequences[shard] += 1

    def _host(self, segment: bytes) -> Host:
        return self.hosts[int.from_bytes(segment, "big")]

    def _ask(self, shard: int, message: Message, host: Host, now_s: float) -> Message:
        outcome = self._cores[shard].handle(message, now_s, host.origin)
        for segment, push in outcome.pushes:
            if isinstance(push, Drop):
                self._drop(self._host(segment), push.drops)
        return outcome.reply

    def validate(self) -> None:
        """Asserts every invariant of every core, and that no node holds more than it can."""
        for core in self._cores:
            core.validate()
        for host in self.hosts:
            assert len(host.held) <= host.capacity_blocks, "a node holds more than it can"


def _entries(blocks: Sequence[tuple[bytes, Block]]) -> Entries:
    count = len(blocks)
    return Entries(
        keyspace=KEYSPACE,
        ranks=pack_u16([0] * count),
        positions=pack_u32([block.position for _, block in blocks]),
        hashes=b"".join([name for name, _ in blocks]),
        parents=b"".join([block.parent for _, block in blocks]),
        slots=pack_u32([block.slot for _, block in blocks]),
        generations=pack_u64([1] * count),
        lengths=pack_u64([1] * count),
    )
