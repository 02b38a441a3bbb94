"""Requests that change hard state: done in the index, recorded in the store, and only then acknowledged."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Iterable, Sequence

import numpy as np

from moonpool.master.cluster_wide import ClusterWide
from moonpool.master.confirmations import DropKey
from moonpool.master.core import MasterCore, Origin
from moonpool.master.entry_log.logs import EntryLogs
from moonpool.master.entry_log.sweep import log_prefix
from moonpool.master.entry_log.voids import void_prefix
from moonpool.master.known_nodes import KnownNodes
from moonpool.master.recorder import Recorder
from moonpool.master.shard_set import KEYSPACES_MAX
from moonpool.master.store.base import Delete, DeletePrefix, Put, Write
from moonpool.master.store.records import (
    DrainRecord,
    RemovalRecord,
    ReplicaRecord,
    TenantRecord,
    drain_key,
    encode,
    keyspace_key,
    replicas_key,
    tenant_key,
)
from moonpool.schemas.clock import Clock
from moonpool.schemas.errors import DeadlineExceeded, MoonpoolError, StaleEpoch, WrongShard
from moonpool.schemas.messages import (
    AS_CONFIGURED,
    Clear,
    Drain,
    Drop,
    Message,
    Pin,
    RegisterKeyspace,
    Remove,
    SetReplicas,
    SetTenant,
    Unpin,
)
from moonpool.schemas.packed import join_hashes, split_hashes, u16s

log = logging.getLogger(__name__)

EXPIRED_A_TURN = 1000
EXPIRE_EVERY_S = 10.0
OBEDIENCE_S = 1.0
"""How long a pin waits until the nodes that hold its rows have seen this owner of the shard."""
REMOVAL_KEPT_MS = 30 * 86_400_000
"""How long a segment may be away and still hear of a removal: one that is gone for good must not fill the store."""

RECORDED = (RegisterKeyspace, Pin, Unpin, Drain, SetReplicas, SetTenant)
"""Messages that are answered when the store has what they ask for."""


def wall_ms() -> int:
    """ms since 1970: what outlives a process can't count by its clock."""
    return time.time_ns() // 1_000_000


class HardRequests:
    """Between a handler and its core."""

    def __init__(
        self, core: MasterCore, clock: Clock, recorder: Recorder, logs: EntryLogs | None = None
    ) -> None:
        self._logs = logs
        self._core = core
        self._clock = clock
        self.recorder = recorder
        self._state = recorder.state
        self.cluster = ClusterWide(core, clock, recorder)
        self.nodes = KnownNodes(core, self.cluster, recorder)
        self._recorded: dict[bytes, dict[int, tuple[int, int]]] = {}
        """Segment, drop id: shard and number of the removal's record."""
        self._leaving: set[tuple[int, bytes, int]] = set()
        """Shard, segment and number of records that are to leave the store. Said once: a number may be used again."""
        self._expire_s = -math.inf

    # ------------------------------------------------------------ recovery

    async def load(self) -> None:
        """What concerns all shards, and those that are owned already. Raises CorruptStore and the store's errors."""
        await self.cluster.refresh()
        for shard in list(self._core.shards):
            await self._recover(shard)
            self.logs_own(shard)

    def logs_own(self, shard: int) -> None:
        """The entry log of a shard, if there is any, is read from now on. One that nobody goes on with is removed: it
        would know nothing of later removals."""
        if self._logs is not None and shard in self._core.shards:
            self._logs.own(shard)
        elif self._logs is None and self.recorder.durable:
            prefixes = (log_prefix(shard), void_prefix(shard))
            self.recorder.record_later(shard, [*map(DeletePrefix, prefixes)])

    async def flush(self, shards: Iterable[int]) -> None:
        """Shards that are still served are about to be given away. Takes less than a second."""
        if self._logs is not None:
            await self._logs.flush(shards)

    async def recover(self, shard: int) -> None:
        """An owned shard's hard state holds when this returns: nothing of it may be evicted before. Raises the same."""
        await self.cluster.refresh()  # other masters may have acknowledged what concerns all shards
        await self._recover(shard)

    async def _recover(self, shard: int) -> None:
        await self.recorder.own(shard)
        if shard not in self._core.shards:
            self._state.disown(shard)
            return
        pins: dict[bytes, dict[bytes, float]] = {}
        for keyspace, block_hash, until_ms in self._state.pins(shard):
            pins.setdefault(keyspace, {})[block_hash] = self._until_s(until_ms)
        for keyspace, of_keyspace in pins.items():
            if keyspace in self._state.keyspaces:
                self._core.restorer.keep_pins(shard, keyspace, of_keyspace)
        for node in self._core.look.nodes():
            self.announced(node.info.segment)

    def disown(self, shard: int) -> None:
        """The shard is another master's, with all that was recorded of it."""
        self._core.disown(shard)
        if self._logs is not None:
            self._logs.disown(shard)
        self._state.disown(shard)
        self._leaving = {one for one in self._leaving if one[0] != shard}

    def _until_s(self, until_ms: int) -> float:
        return self._clock.now_s() + (until_ms - wall_ms()) / 1000 if until_ms else math.inf

    # ------------------------------------------------------------ requests

    def holds(self, message: Message) -> bool:
        """Whether the store has what this asks for already."""
        return isinstance(message, RegisterKeyspace) and message.spec.digest() in self._state.keyspaces

    async def handle(self, message: Message, origin: Origin) -> Message:
        """One of RECORDED. Raises its refusals, and the store's errors: asking again is safe then."""
        reply = self._core.handle(message, self._clock.now_s(), origin).reply
        if isinstance(message, RegisterKeyspace):
            await self.cluster.record(self._register(message))
        elif isinstance(message, Pin):
            await self._pin(message, origin)
        elif isinstance(message, Unpin):
            await self._unpin(message.keyspace, message.hashes)
        elif isinstance(message, Drain):
            record = Put(drain_key(message.node), encode(DrainRecord(wall_ms())))
            await self.cluster.record([record if message.on else Delete(record.key)])
        elif isinstance(message, SetReplicas):
            replicas = Put(replicas_key(message.keyspace), encode(ReplicaRecord(message.replicas)))
            spec = self._core.shards.specs_by_digest[message.keyspace]  # may be known from a node alone
            await self.cluster.record([*self._register(RegisterKeyspace(spec)), replicas])
        elif isinstance(message, SetTenant):
            record = Put(tenant_key(message.tenant), encode(TenantRecord(message.quota_bytes)))
            forget = message.quota_bytes == AS_CONFIGURED
            await self.cluster.record([Delete(record.key) if forget else record])
        return reply

    def _register(self, message: RegisterKeyspace) -> list[Write]:
        writes = self._state.register(message.spec)
        if writes and len(self._state.keyspaces) >= KEYSPACES_MAX:  # the core has made room
            known = self._core.restorer.keyspaces()
            gone = next((digest for digest in self._state.keyspaces if digest not in known), None)
            writes += [Delete(keyspace_key(gone))] if gone is not None else []
            writes += [Delete(replicas_key(gone))] if gone in self._state.replicas else []
        return writes

    async def _pin(self, message: Pin, origin: Origin) -> None:
        until_ms = wall_ms() + message.ttl_ms if message.ttl_ms else 0
        keyspace = message.keyspace
        spec = self._core.shards.specs_by_digest.get(keyspace)
        for shard, hashes in self._core.restorer.pinned(keyspace, message.hashes).items():
            try:
                await self._wait_for_obedience(shard, keyspace, hashes)
                # The core may know the keyspace from a node alone, and who restores the pin needs it.
                if spec is not None:
                    await self.cluster.record(self._register(RegisterKeyspace(spec)))
                await self.recorder.record(self._state.pin(shard, keyspace, hashes, until_ms), shard)
            except MoonpoolError:
                recorded = {name[1] for name in self._state.pins(shard) if name[0] == keyspace}
                undone = b"".join(one for one in hashes if one not in recorded)
                self._core.handle(Unpin(keyspace, undone), self._clock.now_s(), origin)
                raise
            pins = dict.fromkeys(hashes, self._until_s(until_ms))
            self._core.restorer.keep_pins(shard, keyspace, pins)

    async def _wait_for_obedience(self, shard: int, keyspace: bytes, hashes: list[bytes]) -> None:
        """Until no earlier owner of the shard could have these rows dropped. Raises DeadlineExceeded."""
        end_s = self._clock.now_s() + OBEDIENCE_S
        while nodes := self._core.restorer.disobedient(shard, keyspace, hashes):
            if self._clock.now_s() > end_s:
                what = f"the new owner of shard {shard}"
                raise DeadlineExceeded(peer=f"node {nodes[0]}", what=what, timeout_s=OBEDIENCE_S)
            await asyncio.sleep(OBEDIENCE_S / 20)

    async def _unpin(self, keyspace: bytes, packed: bytes) -> None:
        spec = self._core.shards.specs_by_digest.get(keyspace)
        if spec is None:
            return
        hashes = split_hashes(packed, spec.hash_bytes)
        for shard in list(self._core.shards):
            await self._release(shard, keyspace, hashes)

    async def _release(self, shard: int, keyspace: bytes, hashes: Sequence[bytes]) -> None:
        await self.recorder.record(self._state.unpin(shard, keyspace, hashes), shard)
        self._core.restorer.release_pins(shard, keyspace, hashes)

    # ------------------------------------------------------------ removals

    def removed(self, message: Remove | Clear) -> Awaitable[None] | None:
        """What has just left the index must not come back from the entry log: to be awaited before the removal is
        acknowledged, if anything. It raises the store's errors."""
        if self._logs is None or message.dry_run:
            return None
        shards = self._core.shards
        named = np.unique(u16s(message.shards)).tolist() if isinstance(message, Remove) else []
        lacking = self._logs.removed(message.keyspace, named or list(shards))
        return self._logs.void(message.keyspace, lacking, self.recorder.timeout_s) if lacking else None

    def kept_rows(self, message: Remove | Clear) -> dict[int, set[bytes]]:
        """Rows whose pins a removal may end: to be asked for before it."""
        return (
            self._core.restorer.kept_rows(message.keyspace) if message.force and not message.dry_run else {}
        )

    def unheard(self, message: Remove | Clear) -> dict[DropKey, Drop]:
        """What nodes must drop that this master knows of by the store alone: they hear of it when they are here."""
        nodes = {} if message.dry_run else self.nodes.unheard()
        if not nodes or (isinstance(message, Remove) and message.rank >= 0):
            return {}
        found: dict[DropKey, Drop] = {}
        for shard, hashes in self._hashes_of(message).items():
            whole = isinstance(message, Clear)
            for segment in nodes if hashes or whole else ():
                epoch, drop_id = order = self._core.restorer.order(shard)
                packed = join_hashes(hashes)
                drop = Drop(drop_id, epoch, [], message.keyspace, packed, whole, shard, order)
                found[segment, drop_id] = drop
        return found

    def _hashes_of(self, message: Remove | Clear) -> dict[int, list[bytes]]:
        """By shard, what a removal names that is not pinned."""
        owned = list(self._core.shards)
        if isinstance(message, Clear):
            return {shard: [] for shard in owned}
        spec = self._core.shards.specs_by_digest[message.keyspace]
        hashes = split_hashes(message.hashes, spec.hash_bytes)
        found: dict[int, list[bytes]] = {}
        for shard in owned:
            named = u16s(message.shards).tolist() if message.shards else [shard] * len(hashes)
            pinned = {one for keyspace, one, _ in self._state.pins(shard) if keyspace == message.keyspace}
            kept = set() if message.force else pinned
            found[shard] = [
                one for one, of in zip(hashes, named, strict=True) if of == shard and one not in kept
            ]
        return found

    def taken_pins(self, message: Remove | Clear, before: dict[int, set[bytes]]) -> dict[int, set[bytes]]:
        """Of those, the ones that it took: to be asked for at once after it. Later, rows may have left for other reasons,
        for which no pin ends."""
        after = self._core.restorer.kept_rows(message.keyspace) if before else {}
        return {shard: hashes - after.get(shard, set()) for shard, hashes in before.items()}

    async def end_pins(self, message: Remove | Clear, taken: dict[int, set[bytes]]) -> None:
        """Those are no pins any more. Raises the store's errors."""
        for shard, hashes in taken.items():
            await self._release(shard, message.keyspace, sorted(hashes))

    async def record_removals(self, drops: Iterable[tuple[DropKey, Drop]]) -> set[DropKey]:
        """Has removals written that nodes have not confirmed: they are done when those are back. Returns those that
        are recorded: none where the store outlives nothing, fewer where it is away."""
        done: set[DropKey] = set()
        if not self.recorder.durable:
            return done
        for key, drop in drops:
            segment, drop_id = key
            if self._core.restorer.obeyed(segment, drop.shard, drop.order):  # while others were recorded
                done.add(key)
                continue
            name = self._state.nodes.get(segment) or self._core.restorer.name_of_segment(segment)
            removal = RemovalRecord(
                name, wall_ms(), drop.drops, drop.keyspace, drop.hashes, drop.whole_keyspace, drop.order
            )
            number, writes = self._state.remove(drop.shard, segment, removal)
            try:
                await self.recorder.record(writes, drop.shard)
            except MoonpoolError as error:
                log.warning("a removal on node %s is not recorded: %s", name, error)
                if isinstance(error, (StaleEpoch, WrongShard)):
                    continue
                self._state.apply(writes)  # it may be all the same: then it must leave the store some time
            else:
                done.add(key)
            self._leaving.discard((drop.shard, segment, number))
            if self._core.restorer.obeyed(segment, drop.shard, drop.order):  # while it was recorded
                self._forget(drop.shard, segment, number)
            else:
                self._recorded.setdefault(segment, {})[drop_id] = (drop.shard, number)
        return done

    def confirmed(self, keys: Sequence[DropKey]) -> list[tuple[bytes, Drop]]:
        """Nodes have done these. Returns what they are to be told next."""
        segments = set()
        for segment, drop_id in keys:
            found = self._recorded.get(segment, {}).pop(drop_id, None)
            if found is not None:
                shard, number = found
                self._forget(shard, segment, number)
                segments.add(segment)
        return [push for segment in segments for push in self.announced(segment)]

    def announced(self, segment: bytes) -> list[tuple[bytes, Drop]]:
        """A segment is here (again): the removals that it missed. Its next streams repeat them."""
        open_ids = self._core.restorer.outstanding(segment)
        known = {
            drop_id: found
            for drop_id, found in self._recorded.get(segment, {}).items()
            if drop_id in open_ids
        }
        again: list[tuple[bytes, Drop]] = []
        for shard in list(self._core.shards):
            for number, removal in self._state.removals(shard, segment).items():
                if (shard, number) in known.values():
                    continue
                if self._core.restorer.obeyed(segment, shard, removal.order):
                    self._forget(shard, segment, number)
                    continue
                drop = self._core.restorer.recall(segment, shard, removal)
                if drop is not None:
                    known[drop.drop_id] = (shard, number)
                    again.append((segment, drop))
        self._recorded[segment] = known
        if not known:
            del self._recorded[segment]
        return again

    def _forget(self, shard: int, segment: bytes, number: int) -> None:
        """The node has done what this record asks of it. Until it has left the store it must not be asked again."""
        if (shard, segment, number) not in self._leaving:
            self._leaving.add((shard, segment, number))
            self.recorder.record_later(shard, self._state.removed(shard, segment, number))

    def _forget_again(self) -> None:
        """Records whose deletion has failed."""
        for shard in list(self._core.shards):
            for segment in self._state.segments(shard):
                for number, removal in self._state.removals(shard, segment).items():
                    if self._core.restorer.obeyed(segment, shard, removal.order):
                        self._leaving.discard((shard, segment, number))
                        self._forget(shard, segment, number)

    # ------------------------------------------------------------ time

    def facts(self) -> dict[str, int | float]:
        """How much is recorded, how often that failed, and how old the entry log is."""
        logs = self._logs.facts() if self._logs is not None else {}
        return self._state.facts() | {"store_failures": self.recorder.failures} | logs

    def tick(self, now_s: float) -> None:
        """Records that nobody needs any more leave the store."""
        if now_s - self._expire_s < EXPIRE_EVERY_S:
            return
        self._expire_s = now_s
        self.nodes.look(now_s)
        self._forget_again()
        now_ms = wall_ms()
        for shard, writes in self._state.expired(now_ms, now_ms - REMOVAL_KEPT_MS, EXPIRED_A_TURN).items():
            self.recorder.record_later(shard, writes)
