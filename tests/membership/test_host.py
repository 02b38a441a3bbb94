"""A member's shards in a real core: what is loaded, when, and by whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moonpool.master.core import MasterCore
from moonpool.master.handler import MasterHandler
from moonpool.master.hard_requests import HardRequests
from moonpool.master.membership import host as host_module
from moonpool.master.membership.host import CoreHost
from moonpool.master.membership.shard_state import ShardState
from moonpool.master.recorder import Recorder
from moonpool.master.store.base import Page
from moonpool.master.store.memory import MemoryStore
from moonpool.schemas.clock import MonotonicClock
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import StoreFailed


class Slow(MemoryStore):
    """Readers of pins wait until they are let through, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[asyncio.Future[None]] = []

    async def read(self, prefix: bytes, **more: Any) -> Page:
        if prefix.startswith(b"pins/"):
            self.readers.append(asyncio.get_running_loop().create_future())
            await self.readers[-1]
        return await super().read(prefix, **more)


class Stage:
    """A core with no shard yet."""

    def __init__(self) -> None:
        self.store = Slow()
        self.core = MasterCore(4, 1, MasterSettings(), alone=False)
        clock = MonotonicClock()
        hard = HardRequests(self.core, clock, Recorder(self.store, 1.0, durable=True))
        self.late = False
        handler = MasterHandler(self.core, clock, hard)
        handler.serving = lambda: not self.late
        self.host = CoreHost(self.core, handler, hard)

    def take(self, epoch: int) -> asyncio.Task[None]:
        self.host.own(2, epoch)
        return asyncio.create_task(self.host.load(2, epoch))

    async def readers(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.store.readers) < count:
                await asyncio.sleep(0)

    @property
    def state(self) -> ShardState:
        life = self.core.shards.life(2)
        return life.state if life is not None else ShardState.ABSENT


async def test_a_lease_that_is_late_while_a_shard_is_loaded_does_not_leave_it_unloaded() -> None:
    stage = Stage()
    stage.late = True
    stage.core.shards.lease_is_late(True)
    loading = stage.take(7)
    await stage.readers(1)
    stage.store.readers[0].set_result(None)
    await loading
    assert stage.state is ShardState.FENCED
    stage.core.shards.lease_is_late(False)
    assert stage.state is ShardState.SERVING


async def test_what_is_read_for_an_earlier_taking_loads_no_later_one() -> None:
    """Though it was taken in the same epoch: a commit whose answer was lost is found again."""
    stage = Stage()
    first = stage.take(7)
    await stage.readers(1)
    stage.host.disown([2])
    second = stage.take(7)
    await stage.readers(2)
    stage.store.readers[0].set_result(None)
    await first
    assert stage.state is ShardState.LOADING and not stage.core.shards.claims
    stage.store.readers[1].set_result(None)
    await second
    assert stage.state is ShardState.SERVING and stage.core.shards.claims == [(2, 7)]


async def test_a_shard_whose_hard_state_can_not_be_read_is_not_loaded_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_module, "RETRY_S", 0.0)
    stage = Stage()
    loading = stage.take(7)
    await stage.readers(1)
    stage.store.readers[0].set_exception(StoreFailed(store="it", reason="away"))
    await stage.readers(2)
    assert stage.state is ShardState.LOADING
    stage.store.readers[1].set_result(None)
    await loading
    assert stage.state is ShardState.SERVING


async def test_a_shard_that_is_given_away_while_it_is_loaded_is_not_loaded() -> None:
    stage = Stage()
    loading = stage.take(7)
    await stage.readers(1)
    await stage.host.leave(2, 7)
    stage.store.readers[0].set_result(None)
    await loading
    assert stage.state is ShardState.DRAINING and not stage.core.shards.claims
