"""One master's part in a cluster: its lease, the shards that it takes, holds and gives away. The I/O around the pure
parts: lease.py, view.py, shard_state.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from moonpool.master.membership.lease import LeaseClock
from moonpool.master.membership.records import (
    MASTERS,
    SHARDS,
    MasterRecord,
    OwnerRecord,
    encode,
    epoch_key,
    epoch_value,
    master_key,
    owner_key,
    owns,
)
from moonpool.master.membership.view import ClusterView
from moonpool.master.store.base import Condition, Delete, MetadataStore, Put, Record
from moonpool.schemas.errors import Compacted, LeaseLost, MoonpoolError

log = logging.getLogger(__name__)

RETRY_S = 0.2
PAGE_RECORDS = 1000


class ShardHost(Protocol):
    """What a member tells the rest of its master."""

    def own(self, shard: int, epoch: int) -> None:
        """It is ours. Until `load` has ended nothing may be changed in it."""
        ...

    async def load(self, shard: int, epoch: int) -> None:
        """Reads what the store has of it."""
        ...

    async def leave(self, shard: int, epoch: int) -> None:
        """Nothing is answered from it from now on; what its next owner should know is written."""
        ...

    def disown(self, shards: Iterable[int]) -> None:
        """They aren't ours any more."""
        ...

    def see(self, view: ClusterView) -> None:
        """The cluster has changed."""
        ...


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """`address`: for clients and nodes. `lease_s`: how long others wait for a master that is silent. `http`: see
    MasterRecord."""

    address: str
    lease_s: float
    timeout_s: float
    http: str = ""


class ClusterMember:
    """To be used in one event loop. `run` until cancelled, or until `leave` has returned."""

    def __init__(
        self,
        store: MetadataStore,
        shards: int,
        settings: MemberSettings,
        host: ShardHost,
        monotonic: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        # A life of its own: what an earlier process at this address owned is not ours.
        self.name = f"{settings.address}/{secrets.token_hex(4)}"
        self.clock = LeaseClock()
        self.view = ClusterView(shards)
        self._store = store
        self._settings = settings
        self._host = host
        self._monotonic = monotonic
        self._wall_s = wall_s
        self._held: dict[int, int] = {}
        """Shards and the epochs in which we hold them."""
        self._taken: dict[int, int] = {}
        """The revisions at which we took them: older news say nothing of them."""
        self._leaving: set[int] = set()
        self._released: dict[int, int] = {}
        """Shards and the epochs in which we gave them away: news that say otherwise are old."""
        self._lease = 0
        self._draining = False
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._failure = ""

    def serving(self) -> bool:
        """Whether requests may be answered now (I7)."""
        return self.clock.valid(self._monotonic())

    # ------------------------------------------------------------ one lease after the other

    async def run(self) -> None:
        """Lives under leases until cancelled."""
        while True:
            try:
                await self._live()
            except LeaseLost as error:
                log.error("fenced: %s; its shards are somebody else's", error)
            except MoonpoolError as error:
                self._note(error)
            except (
                Exception
            ):  # else the master would live on and refuse everything, and nobody would know why
                log.exception("membership: a fault in the program; joining again")
            finally:
                self._lose_all()
            await asyncio.sleep(RETRY_S)

    def _note(self, error: MoonpoolError) -> None:
        """One line for each new reason, not one a retry."""
        if str(error) != self._failure:
            self._failure = str(error)
            log.warning("membership: %s", error)

    def _lose_all(self) -> None:
        self.clock.lost()
        self._lease = 0
        held, self._held = self._held, {}
        self._taken.clear()
        self._leaving.clear()
        self._empty.set()
        if held:
            self._host.disown(held)

    async def _live(self) -> None:
        """The life of one lease. Returns never; raises LeaseLost, and what the store raises before it has begun."""
        timeout_s, ttl_s = self._settings.timeout_s, self._settings.lease_s
        sent_s = self._monotonic()
        self._lease = await self._store.grant(ttl_s, timeout_s=timeout_s)
        await self._announce()
        self.clock.renewed(sent_s, ttl_s)
        log.info("member %s of the cluster", self.name)
        await _first_failure(self._keep_alive(), self._follow(), self._act())

    async def _announce(self) -> None:
        record = MasterRecord(self._settings.address, self._draining, self._settings.http)
        put = Put(master_key(self.name), encode(record), self._lease)
        await self._store.commit([put], timeout_s=self._settings.timeout_s)

    async def _keep_alive(self) -> None:
        """Until the store says that the lease is lost. While the store can't be asked, the clock fences us."""
        while True:
            await asyncio.sleep(self.clock.wait_s(self._monotonic()))
            sent_s = self._monotonic()
            try:
                async with asyncio.timeout(self._settings.lease_s):
                    ttl_s = await self._store.keep_alive(self._lease, timeout_s=self._settings.lease_s)
            except LeaseLost:
                raise
            except (MoonpoolError, TimeoutError) as error:
                log.warning("no keepalive: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            self.clock.renewed(sent_s, min(ttl_s, self._settings.lease_s))

    # ------------------------------------------------------------ news

    async def _follow(self) -> None:
        """Keeps the view as the store has it."""
        while True:
            try:
                records, revision = await self._read_all()
                self.view.reset(records, revision)
                self._changed()
                await _first_failure(self._watch(MASTERS, revision), self._watch(SHARDS, revision))
            except Compacted:
                continue
            except MoonpoolError as error:
                self._note(error)
                await asyncio.sleep(RETRY_S)

    async def _read_all(self) -> tuple[list[Record], int]:
        """All records of membership, and a revision after which news may repeat some of them."""
        found: list[Record] = []
        revisions: list[int] = []
        for prefix in (MASTERS, SHARDS):
            after, more = b"", True
            while more:
                page = await self._store.read(
                    prefix, after=after, records_max=PAGE_RECORDS, timeout_s=self._settings.timeout_s
                )
                found += page.records
                revisions.append(page.revision)
                more = page.more
                after = page.records[-1].key if page.records else b""
        return found, min(revisions)

    async def _watch(self, prefix: bytes, revision: int) -> None:
        async for changes in self._store.watch(prefix, after_revision=revision):
            self.view.apply(changes)
            self._changed()

    def _changed(self) -> None:
        self._host.see(self.view)
        self._wake.set()

    # ------------------------------------------------------------ deeds

    async def _act(self) -> None:
        """Takes and releases shards as the view says."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._forget_lost()
            deeds = [*self._to_take(), *map(self._release, self._to_release())]
            failures = [
                one for one in await asyncio.gather(*deeds, return_exceptions=True) if one is not None
            ]
            for failure in failures:
                if isinstance(failure, LeaseLost) or not isinstance(failure, MoonpoolError):
                    raise failure
                self._note(failure)
            if failures:
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    def _to_take(self) -> list[Awaitable[None]]:
        if self._draining:
            return []
        free = [shard for shard in self.view.to_take(self.name) if shard not in self._held]
        # Ours by a commit whose answer was lost.
        found = [
            self._hold(shard, owner.epoch, self.view.revision)
            for shard in range(self.view.shards)
            if shard not in self._held
            and (owner := self.view.owner(shard)) is not None
            and owner.master == self.name
            and owner.epoch > self._released.get(shard, 0)
        ]
        return [*map(self._take, free), *found]

    def _to_release(self) -> set[int]:
        wanted = set(self._held) if self._draining else set(self.view.to_release(self.name, self._held))
        return wanted | self._leaving

    def _forget_lost(self) -> None:
        """Shards that the store says are somebody else's: somebody's hand was in it."""
        gone = []
        for shard in self._held:
            owner = self.view.owner(shard)
            ours = owner is not None and owner.master == self.name
            if not ours and self.view.revision >= self._taken[shard]:
                gone.append(shard)
        for shard in gone:
            log.error("shard %d is not ours any more", shard)
            del self._held[shard]
        if gone:
            self._host.disown(gone)

    async def _take(self, shard: int) -> None:
        last = self.view.epoch(shard)
        # Near the time in ms: nodes may have seen epochs of a master that was alone, which are that.
        epoch = max(last.epoch + 1, round(self._wall_s() * 1000))
        revision = await self._store.commit(
            [
                Put(owner_key(shard), encode(OwnerRecord(self.name, epoch)), self._lease),
                Put(epoch_key(shard), epoch_value(epoch)),
            ],
            conditions=[Condition(owner_key(shard)), Condition(epoch_key(shard), version=last.version)],
            timeout_s=self._settings.timeout_s,
        )
        if revision is None:
            return  # somebody was faster, and the view will say so
        await self._hold(shard, epoch, revision)

    async def _hold(self, shard: int, epoch: int, revision: int) -> None:
        log.info("shard %d is ours in epoch %d", shard, epoch)
        self._host.own(shard, epoch)
        self._taken[shard] = revision
        self._held[shard] = epoch
        self._empty.clear()
        await self._host.load(shard, epoch)

    async def _release(self, shard: int) -> None:
        epoch = self._held[shard]
        self._leaving.add(shard)
        await self._host.leave(shard, epoch)
        await self._store.commit(
            [Delete(owner_key(shard))], conditions=[owns(shard, epoch)], timeout_s=self._settings.timeout_s
        )
        log.info("shard %d is given away", shard)
        self._released[shard] = epoch
        self._leaving.discard(shard)
        del self._held[shard]
        self._host.disown([shard])
        if not self._held:
            self._empty.set()

    async def leave(self, timeout_s: float) -> None:
        """Gives all shards away, then the lease. What takes longer than `timeout_s` is left to the lease's end."""
        self._draining = True
        with contextlib.suppress(MoonpoolError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                if self._lease:
                    await self._announce()  # before the first shard is free: it must not come back to us
                    self._wake.set()
                    await self._empty.wait()
                    await self._store.revoke(self._lease, timeout_s=timeout_s)


async def _first_failure(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs the parts until one ends, which ends the others."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
