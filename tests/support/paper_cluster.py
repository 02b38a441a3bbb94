"""A MasterCore with nodes that exist only on paper: they hold slots by number, obey drops, and report."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from moonpool.master.core import MasterCore, Origin, Outcome, Push
from moonpool.master.eviction import LeastRecentlyUsed
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Announce,
    Check,
    Copied,
    CopyOrder,
    Drop,
    DropDone,
    DropList,
    Entries,
    Freed,
    Heartbeat,
    InventoryEnd,
    Message,
    Need,
    NodeInfo,
    Obeyed,
    Op,
    Report,
    Status,
    Victims,
)
from moonpool.schemas.packed import join_hashes, pack_u16, pack_u32, pack_u64, split_hashes, u16s, u32s, u64s
from support.node_info import node_info

BLOCK_BYTES = 4096
Held = tuple[int, bytes]
"""(rank, hash) of the one keyspace under test."""
Slot = tuple[int, int]
"""(slot, generation)."""


def chain(count: int, name: str = "c") -> list[bytes]:
    """16-byte hashes of a chain."""
    return [hashlib.sha256(f"{name}{position}".encode()).digest()[:16] for position in range(count)]


def chained_spec(world: int = 1, name: str = "model") -> KeyspaceSpec:
    """A chained keyspace with small blocks and short hashes."""
    return KeyspaceSpec(kind=Kind.CHAINED, name=name, shard_bytes=(BLOCK_BYTES,) * world, hash_bytes=16)


def flat_spec(world: int = 1, name: str = "model") -> KeyspaceSpec:
    """The same, flat."""
    return KeyspaceSpec(kind=Kind.FLAT, name=name, shard_bytes=(BLOCK_BYTES,) * world, hash_bytes=16)


@dataclass
class Block:
    """What a commit says of a block."""

    block_hash: bytes
    position: int = 0
    parent: bytes = bytes(16)


def blocks_of(hashes: Sequence[bytes], first: int = 0) -> list[Block]:
    """Blocks first and up of a chain that begins with hashes[0]."""
    return [
        Block(hashes[position], position, hashes[position - 1] if position else bytes(16))
        for position in range(first, len(hashes))
    ]


@dataclass
class PaperSegment:
    """One node. `held`: committed slots; more than one of a (rank, hash) where the master has not dropped one yet."""

    info: NodeInfo
    held: dict[Held, list[Slot]] = field(default_factory=dict)
    blocks: dict[bytes, Block] = field(default_factory=dict)
    outbox: list[Op] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    orders: list[CopyOrder] = field(default_factory=list)
    copied: set[Slot] = field(default_factory=set)
    """Slots that were filled by orders."""
    obeyed: set[tuple[int, int]] = field(default_factory=set)
    connected: bool = False
    stream: int = 0
    sequence: int = 0
    next_slot: int = 1
    next_generation: int = 0  # when its stream began

    def fill(self, rank: int, block: Block, *, copied: bool = False) -> Slot:
        """A new committed slot."""
        slot = (self.next_slot, self.next_slot + 1000)
        if copied:
            self.copied.add(slot)
        self.next_slot += 1
        self.blocks[block.block_hash] = block
        self.held.setdefault((rank, block.block_hash), []).append(slot)
        return slot

    def lose(self, key: Held, slot: Slot) -> bool:
        """The slot is no longer what it was. Returns whether it was that."""
        slots = self.held.get(key, [])
        if slot not in slots:
            return False
        slots.remove(slot)
        if not slots:
            del self.held[key]
        return True


class PaperCluster:
    """The core, its clock, and its nodes, for one keyspace. Pushes are delivered at once; what nodes free is
    reported with their next message. Evicts by LRU, whose order a test can tell beforehand."""

    def __init__(self, spec: KeyspaceSpec, settings: MasterSettings | None = None) -> None:
        self.spec = spec
        self.keyspace = spec.digest()
        self.core = MasterCore(1, 7, settings or MasterSettings(), LeastRecentlyUsed())
        self.now_s = 1000.0
        self.segments: dict[str, PaperSegment] = {}
        self.confirmed: list[tuple[bytes, int]] = []

    # ------------------------------------------------------------ nodes

    def join(self, name: str, host: str = "", *, inventory: bool = True) -> PaperSegment:
        """Announces a segment (again). With its whole inventory, unless told otherwise."""
        segment = self.segments.get(name)
        if segment is None:
            info = node_info(name, segment=name.encode().ljust(8, b"."), host=host or f"host-{name}")
            segment = self.segments[name] = PaperSegment(info)
        segment.connected = True
        segment.next_generation = segment.next_slot + 1000
        segment.stream += 1
        segment.sequence = 0
        segment.outbox.clear()
        self.core.handle(Announce(segment.info, [self.spec], 0), self.now_s, self.origin())
        if inventory:
            self.report(name, *self.inventory(name), InventoryEnd())
        return segment

    def inventory(self, name: str) -> list[Op]:
        """All that a segment holds, as ops."""
        segment = self.segments[name]
        held = [
            (rank, segment.blocks[h], slot) for (rank, h), slots in segment.held.items() for slot in slots
        ]
        parts = [
            (copied, [one for one in held if (one[2] in segment.copied) is copied])
            for copied in (False, True)
        ]
        return [self.entries(found, copied=copied) for copied, found in parts if found]

    def entries(self, committed: Sequence[tuple[int, Block, Slot]], *, copied: bool = False) -> Entries:
        """One op for many slots."""
        return Entries(
            self.keyspace,
            pack_u16([rank for rank, _, _ in committed]),
            pack_u32([block.position for _, block, _ in committed]),
            join_hashes(block.block_hash for _, block, _ in committed),
            join_hashes(block.parent for _, block, _ in committed),
            pack_u32([slot[0] for _, _, slot in committed]),
            pack_u64([slot[1] for _, _, slot in committed]),
            pack_u64([BLOCK_BYTES] * len(committed)),
            copied,
        )

    def report(self, name: str, *ops: Op) -> None:
        """The next message of the segment's stream: what waits in its outbox, then `ops`."""
        segment = self.segments[name]
        words = pack_u64([word for order in segment.obeyed for word in order])
        told = [Obeyed(words, segment.next_generation)] if segment.sequence == 0 else []
        everything = [*told, *segment.outbox, *ops]
        segment.outbox.clear()
        message = Report(segment.info.segment, segment.stream, segment.sequence, everything)
        outcome = self.core.handle(message, self.now_s, self.origin())
        segment.sequence += 1
        self.confirmed += outcome.confirmed
        self.deliver(outcome.pushes)

    def commit(self, name: str, blocks: Sequence[Block], ranks: Sequence[int] | None = None) -> None:
        """Puts blocks in a segment and reports them: every rank, unless told otherwise."""
        wanted = range(self.spec.world) if ranks is None else ranks
        segment = self.segments[name]
        committed = [(rank, block, segment.fill(rank, block)) for rank in wanted for block in blocks]
        self.report(name, self.entries(committed))

    def heartbeat(self, name: str) -> None:
        """With 1 GiB free."""
        message = Heartbeat(self.segments[name].info.segment, 7, 1 << 30)
        self.core.handle(message, self.now_s, self.origin())

    def disconnect(self, name: str) -> None:
        """Its connection breaks."""
        self.segments[name].connected = False
        self.deliver(self.core.node_disconnected(self.segments[name].info.segment, self.now_s))

    def need(self, name: str, blocks: int) -> Victims:
        """Asks for room; the node frees what it is told."""
        segment = self.segments[name]
        message = Need(segment.info.segment, 7, blocks * BLOCK_BYTES)
        outcome = self.core.handle(message, self.now_s, self.origin())
        victims = outcome.reply
        assert isinstance(victims, Victims)
        self._free(segment, victims.drops)
        self.deliver(outcome.pushes)
        return victims

    # ------------------------------------------------------------ pushes

    def deliver(self, pushes: Sequence[Push]) -> None:
        """To the nodes that are connected."""
        by_id = {segment.info.segment: segment for segment in self.segments.values()}
        for segment_id, message in pushes:
            segment = by_id[segment_id]
            if not segment.connected:
                continue
            if isinstance(message, Check):
                segment.checks.append(message)
                continue
            if isinstance(message, CopyOrder):
                segment.orders.append(message)
                continue
            segment.drops.append(message)
            self._free(segment, message.drops)
            gone = split_hashes(message.hashes, 16)
            for key in list(segment.held) if message.order not in segment.obeyed else ():
                if message.whole_keyspace or key[1] in gone:
                    for slot in list(segment.held[key]):
                        if not message.before or slot[1] < message.before:
                            self._free_slot(segment, key, slot)
            if message.keyspace:
                segment.obeyed.add(message.order)
            segment.outbox.append(DropDone(message.drop_id))

    def carry_out(self, name: str) -> int:
        """The node copies what it was ordered to, as far as it is still there. Returns how many blocks."""
        segment, done = self.segments[name], 0
        by_id = {one.info.segment: one for one in self.segments.values()}
        orders, segment.orders = segment.orders, []
        for order in orders:
            source, statuses = by_id[order.source.segment], bytearray()
            places = zip(u32s(order.slots).tolist(), u64s(order.generations).tolist(), strict=True)
            for block_hash, place in zip(split_hashes(order.hashes, 16), places, strict=True):
                key = (order.rank, block_hash)
                there = source.connected and place in source.held.get(key, ())
                statuses.append(Status.OK if there else Status.MISSING)
                if there:
                    done += 1
                    block = source.blocks[block_hash]
                    slot = segment.fill(order.rank, block, copied=True)
                    segment.outbox.append(self.entries([(order.rank, block, slot)], copied=True))
            segment.outbox.append(Copied(order.order, bytes(statuses)))
        return done

    def _free(self, segment: PaperSegment, drops: Sequence[DropList]) -> None:
        for rank, block_hash, slot in dropped(drops):
            self._free_slot(segment, (rank, block_hash), slot)

    def _free_slot(self, segment: PaperSegment, key: Held, slot: Slot) -> None:
        if segment.lose(key, slot):
            segment.outbox.append(self.freed(key, slot))

    def freed(self, key: Held, slot: Slot) -> Freed:
        """One slot that holds nothing any more."""
        rank, block_hash = key
        return Freed(self.keyspace, pack_u16([rank]), block_hash, pack_u32([slot[0]]), pack_u64([slot[1]]))

    # ------------------------------------------------------------ clients

    def origin(self, host: str = "") -> Origin:
        """Somebody on a host."""
        return Origin(host, "default", None)

    def outcome(self, message: Message, host: str = "") -> Outcome:
        """Asks, and delivers what that leads to."""
        outcome = self.core.handle(message, self.now_s, self.origin(host))
        self.deliver(outcome.pushes)
        return outcome

    def ask(self, message: Message, host: str = "") -> Message:
        """Asks, and delivers what that leads to."""
        return self.outcome(message, host).reply

    def advance(self, seconds: float, *, heartbeats: bool = True) -> None:
        """Time passes in steps of a second, with ticks, and heartbeats of connected nodes."""
        while seconds > 0:
            step_s = min(seconds, 1.0)
            self.now_s += step_s
            seconds -= step_s
            for name, segment in self.segments.items():
                if heartbeats and segment.connected:
                    self.heartbeat(name)
            self.deliver(self.core.tick(self.now_s))
            self.work()

    def work(self) -> None:
        """All of what may wait."""
        while self.core.shards.work(self.now_s) < inf:
            pass


def dropped(drops: Sequence[DropList]) -> list[tuple[int, bytes, Slot]]:
    """(rank, hash, slot) of each location, in order."""
    return [
        (rank, block_hash, (slot, generation))
        for part in drops
        for rank, block_hash, slot, generation in zip(
            u16s(part.ranks).tolist(),
            split_hashes(part.hashes, 16),
            u32s(part.slots).tolist(),
            u64s(part.generations).tolist(),
            strict=True,
        )
    ]
