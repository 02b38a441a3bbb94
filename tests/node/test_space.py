"""Room for puts in a full pool, whatever sizes fill it."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

import numpy as np
import pytest
from support.node_sink import IndexSink
from support.waiting import at_most, until

from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import Begin, BeginItem, DropList, Granted, Status, Victims
from moonpool.schemas.packed import pack_u32, pack_u64
from moonpool.store_client.node import space
from moonpool.store_client.node.ahead import like
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.space import SpaceKeeper

SPEC = objects_keyspace()
DIGEST = SPEC.digest()
PAGE = 64 << 10
PAGES = 16


class Pool:
    """A core, its keeper, and a master that gives up the oldest objects first."""

    def __init__(self, begin_wait_s: float = 30.0, evictable: bool = True) -> None:
        self.sink = IndexSink()
        self.core = NodeCore(HeapMemory(Layout(PAGE, PAGES)), self.sink)
        self.core.register(SPEC)
        self.core.open_session(SessionRecord(1, "/lock"))
        self.evictable = evictable
        self.pinned: set[int] = set()
        self.needs: list[int] = []
        self.keeper = SpaceKeeper(
            self.core, self._need, begin_wait_s=begin_wait_s, high_watermark=0.95, low_watermark=0.8
        )
        self.puts = 0

    async def _need(self, want_bytes: int) -> Victims | None:
        self.needs.append(want_bytes)
        await asyncio.sleep(0)
        if not self.evictable:
            return Victims([], 0, -1)
        places, freed_bytes = [], 0
        oldest = OrderedDict(sorted(self.sink.index.items(), key=lambda pair: pair[1].generation))
        for slot, entry in oldest.items():
            if freed_bytes >= want_bytes:
                break
            if entry.generation not in self.pinned:
                places.append((slot, entry.generation))
                freed_bytes += entry.length
        drop = DropList(
            DIGEST, b"", b"", pack_u32([slot for slot, _ in places]), pack_u64([g for _, g in places])
        )
        return Victims([drop], freed_bytes, 1)

    def request(self, size: int, count: int) -> Begin:
        self.puts += 1
        hashes = np.random.default_rng(self.puts).bytes(16 * count)
        return Begin(1, self.puts, [BeginItem(DIGEST, 0, 0, b"", hashes, pack_u64([size] * count))])

    async def put(self, size: int, count: int) -> list[int]:
        """Begins, waits as a server would, commits; returns the statuses."""
        request = self.request(size, count)
        answer = self.core.begin(1, request, partial=False)
        if not isinstance(answer, Granted):
            answer = await self.keeper.begin(1, request)
        (statuses,) = self.core.commit(1, [request.put_id])
        self.core.validate()
        return list(statuses)

    def fill(self, size: int) -> None:
        """Until nothing of that size fits."""
        while True:
            request = self.request(size, 8)
            granted = self.core.begin(1, request, partial=True)
            assert isinstance(granted, Granted)
            self.core.commit(1, [request.put_id])
            if Status.NO_SPACE in granted.statuses:
                return


@pytest.mark.parametrize(("held", "wanted"), [(1024, 40_000), (40_000, 1024), (9000, 65_536), (65_536, 3000)])
async def test_a_pool_full_of_one_size_takes_another(held: int, wanted: int) -> None:
    pool = Pool()
    pool.fill(held)
    before = len(pool.sink.index)
    assert await pool.put(wanted, 1) == [Status.OK]
    # Little was given up for it: a few pages at most.
    assert len(pool.sink.index) - 1 >= before * (PAGES - 3) // PAGES


async def test_a_pool_full_of_many_sizes_takes_another() -> None:
    pool = Pool()
    rng = np.random.default_rng(3)
    while pool.core.slots.allocator.pool_pages:
        await pool.put(int(rng.choice([900, 2000, 5000, 9000, 17_000, 30_000])), 2)
    for _ in range(50):
        assert await pool.put(int(rng.choice([50_000, 700, 12_000, 65_000])), 2) == [Status.OK] * 2
    assert pool.keeper.counters["pages_emptied"] > 0
    await pool.keeper.close()


async def test_scattered_free_slots_become_a_page_without_any_eviction() -> None:
    pool = Pool(evictable=False)
    pool.fill(4096)
    slots = sorted(pool.sink.index)[::8]
    generations = [pool.sink.index[slot].generation for slot in slots]
    pool.core.drops.exact([DropList(DIGEST, b"", b"", pack_u32(slots), pack_u64(generations))])
    assert pool.core.slots.allocator.pool_pages == 0
    assert await pool.put(60_000, 1) == [Status.OK]
    assert pool.needs == [] and pool.keeper.counters["pages_emptied"] == 1


async def test_more_sizes_than_pages_cost_nobody_anything_while_most_is_free() -> None:
    pool = Pool(evictable=False)
    sizes = list(range(1024, 16_000, 251))  # 31 size classes, 16 pages
    for size in sizes:
        assert await pool.put(size, 1) == [Status.OK]
    assert len(pool.sink.index) == len(sizes) and pool.needs == []


async def test_slots_ahead_are_never_like_larger_ones() -> None:
    """A writer asks for slots of its objects' size: others would only lie there."""
    pool = Pool(evictable=False)
    for size in (*range(1152, 2049, 128), *range(2304, 3841, 256), 12_000):
        pool.core.begin(1, pool.request(size, 1), partial=True)
    for size, granted_like in ((4000, False), (1152, True)):
        request = pool.request(size, 1)
        granted = pool.core.begin(1, request, partial=True)
        assert isinstance(granted, Granted) and granted.statuses == bytes([Status.OK])
        put = pool.core.writers.get(1).puts[request.put_id]
        assert (like(pool.core.slots, put) is not None) == granted_like


async def test_a_large_object_moves_small_ones_together_before_any_goes() -> None:
    pool = Pool(evictable=False)
    for size in list(range(1024, 9000, 251))[:PAGES]:
        assert await pool.put(size, 2) == [Status.OK] * 2
    entries = len(pool.sink.index)
    for _ in range(4):
        assert await pool.put(40_000, 1) == [Status.OK]
    assert len(pool.sink.index) == entries + 4 and pool.needs == []
    assert pool.keeper.counters["pages_emptied"] > 0


async def test_what_may_not_be_evicted_stays_and_the_put_gets_no_space() -> None:
    pool = Pool(begin_wait_s=0.1)
    pool.fill(4096)
    pool.pinned = {entry.generation for entry in pool.sink.index.values()}
    started_s = time.monotonic()
    assert await pool.put(60_000, 2) == [Status.NO_SPACE] * 2
    assert 0.05 < time.monotonic() - started_s < at_most(0.1)
    assert len(pool.sink.index) == len(pool.pinned)


async def test_a_begin_waits_no_longer_than_it_may_for_a_master_that_is_silent() -> None:
    pool = Pool(begin_wait_s=0.1)
    pool.fill(4096)

    async def silent(want_bytes: int) -> Victims | None:
        await asyncio.sleep(600)
        return None

    pool.keeper._need = silent
    started_s = time.monotonic()
    assert await pool.put(4096, 2) == [Status.NO_SPACE] * 2
    assert 0.05 < time.monotonic() - started_s < at_most(0.1)
    await pool.keeper.close()


async def test_many_begins_share_the_rounds() -> None:
    pool = Pool()
    pool.fill(4096)
    answers = await asyncio.gather(*(pool.put(20_000, 1) for _ in range(20)))
    assert answers == [[Status.OK]] * 20


async def test_slots_being_written_are_never_moved() -> None:
    pool = Pool(begin_wait_s=0.1)
    pool.evictable = False
    granted = []
    for _ in range(PAGES):
        request = pool.request(4096, 16)
        answer = pool.core.begin(1, request, partial=False)
        assert isinstance(answer, Granted)
        granted.append(answer)
    assert await pool.put(60_000, 1) == [Status.NO_SPACE]
    for answer in granted:
        assert pool.core.writers.get(1).puts[answer.put_id].granted() == answer


async def test_between_the_watermarks_the_oldest_go_before_anyone_waits() -> None:
    pool = Pool()
    pool.fill(4096)
    newest = max(entry.generation for entry in pool.sink.index.values())
    task = asyncio.create_task(pool.keeper.run())
    capacity = PAGE * PAGES
    await until(lambda: pool.core.slots.allocator.free_bytes >= 0.2 * capacity - 4096)
    needs = len(pool.needs)
    await asyncio.sleep(0.15)
    assert len(pool.needs) == needs, "it went on below the low watermark"
    assert newest in {entry.generation for entry in pool.sink.index.values()}
    assert pool.core.slots.allocator.free_bytes < 0.3 * capacity
    task.cancel()
    await asyncio.wait({task})


async def test_a_grant_that_crosses_the_watermark_starts_eviction_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(space, "POLL_S", 600.0)
    pool = Pool()
    task = asyncio.create_task(pool.keeper.run())
    await asyncio.sleep(0)
    allocator, capacity = pool.core.slots.allocator, PAGE * PAGES
    while allocator.free_bytes >= 0.05 * capacity:
        assert not pool.needs
        await pool.put(4096, 4)
        pool.keeper.look()
    await until(lambda: allocator.free_bytes >= 0.2 * capacity - 4096)
    assert pool.needs and pool.keeper.counters["begins_waited"] == 0
    task.cancel()
    await asyncio.wait({task})


async def test_victims_that_cannot_be_read_free_nothing_and_break_nothing() -> None:
    pool = Pool(begin_wait_s=0.05)
    pool.fill(4096)

    async def mad(want_bytes: int) -> Victims | None:
        return Victims([DropList(DIGEST, b"", b"", b"123", b"")], 10, 0)

    pool.keeper._need = mad
    assert await pool.put(4096, 1) == [Status.NO_SPACE]
