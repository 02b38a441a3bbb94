"""A whole node in the test's event loop, against a master that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from support.fake_master import FakeMaster
from support.waiting import until

from moonpool.schemas.config import NodeSettings
from moonpool.schemas.errors import KeyspaceUnknown, StreamGap
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Begin,
    BeginItem,
    Check,
    Checked,
    Drop,
    DropDone,
    DropList,
    Freed,
    Granted,
    NodeInfo,
    Obeyed,
    Victims,
)
from moonpool.schemas.packed import pack_u64, u32s, u64s
from moonpool.store_client.node import master_link
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.runtime import Node
from moonpool.store_client.node.segment import open_segment

SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="model", shard_bytes=(4096,))
DIGEST = SPEC.digest()


class Running:
    """A node that runs until `stop`."""

    def __init__(self, folder: Path, master: FakeMaster, epoch_seen: int = 0) -> None:
        self.folder = folder
        self.master = master
        self.puts = 0

    async def start(self) -> None:
        settings = NodeSettings(
            master=self.master.address,
            size=1 << 20,
            page_size=64 << 10,
            segment_dir=str(self.folder),
            run_dir=str(self.folder / "run"),
        )
        layout = Layout.of(settings.size, settings.page_size)
        self.segment = open_segment(str(self.folder), settings.name, layout)
        self.node = Node(settings, self.segment)
        self.core = self.node.core
        self.stopped = asyncio.Event()
        ready: asyncio.Future[NodeInfo] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self.node.run(self.stopped, ready.set_result))
        self.info = await ready
        self.core.writers.add(1)
        self.node._register(SPEC)

    async def stop(self) -> None:
        self.stopped.set()
        await self.task
        self.segment.close()

    def put(self, count: int = 5, commit: bool = True) -> Granted:
        self.puts += 1
        self.hashes = np.random.default_rng(self.puts).bytes(32 * count)
        with self.core.lock:
            granted = self.core.begin(
                1, Begin(1, self.puts, [BeginItem(DIGEST, 0, 0, b"", self.hashes)]), partial=False
            )
            assert isinstance(granted, Granted)
            if commit:
                self.core.commit(1, [self.puts])
        return granted

    def held(self) -> dict[int, int]:
        slots = [slot for page in range(16) for slot in self.core.slots.page_slots(page).tolist()]
        words = self.core.slots.headers.words[self.core.slots.rows(np.array(slots, dtype=np.uint32))]
        return {
            slot: word & ((1 << 56) - 1)
            for slot, word in zip(slots, words.tolist(), strict=True)
            if word >> 56 == 2
        }

    def agrees(self) -> bool:
        told = {slot: entry.generation for slot, entry in self.master.index.index.items()}
        return self.master.complete and told == self.held()


@pytest.fixture
async def master() -> AsyncIterator[FakeMaster]:
    async with FakeMaster() as made:
        yield made


@pytest.fixture
async def running(shm: Path, master: FakeMaster) -> AsyncIterator[Running]:
    made = Running(shm, master)
    await made.start()
    yield made
    if not made.task.done():
        await made.stop()
    await asyncio.wait_for(made.task, 60)


def done(master: FakeMaster) -> list[int]:
    return [op.drop_id for op in master.ops if isinstance(op, DropDone)]


async def test_commits_and_heartbeats_reach_the_master(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    running.put(100)
    await until(running.agrees)
    assert len(master.index.index) == 100
    assert master.announces[0].info == running.info
    await until(lambda: len(master.beats) > 2)
    assert master.beats[-1].free_bytes == (1 << 20) - 100 * 4096
    assert master.streams[1:] == []


async def test_the_first_report_goes_at_once_and_what_comes_meanwhile_together(
    running: Running, master: FakeMaster
) -> None:
    stream = running.node._streams.of(0)
    await until(lambda: stream.idle)
    told = master.reports
    for _ in range(4):
        running.put(1)
    assert (stream.unacked, stream.queued_rows) == (1, 3)
    await until(lambda: stream.idle and running.agrees())
    assert master.reports == told + 2


async def test_a_restarted_master_is_told_everything_again(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    running.put(50)
    await until(running.agrees)
    await master.server.close()
    master.complete = False
    master.keyspaces.clear()
    running.put(10)
    await master.start()
    await until(running.agrees)
    assert len(master.streams) == 2 and len(master.index.index) == 60
    assert master.announces[-1].specs == [SPEC]


async def test_a_gap_starts_a_new_stream_on_the_same_connection(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    master.refusal = StreamGap(expected=7, got=1)
    running.put(3)
    await until(lambda: len(master.streams) == 2 and running.agrees())
    assert len(master.announces) == 1


async def test_any_other_refusal_of_a_report_announces_again(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    master.refusal = KeyspaceUnknown(keyspace="x")
    running.put(3)
    await until(lambda: len(master.announces) == 2 and running.agrees())


async def test_a_new_epoch_gets_a_new_stream(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    running.put(3)
    master.epoch = 6
    await until(lambda: len(master.announces) == 2 and running.agrees())
    assert master.announces[1].epoch_seen == 5
    await until(lambda: running.node.numbers()["master_epoch"] == 6)


async def test_an_older_epoch_is_refused_even_after_a_restart_of_the_node(
    running: Running, master: FakeMaster
) -> None:
    await until(lambda: master.complete)
    await running.stop()
    master.epoch = 4
    streams = len(master.streams)
    await running.start()
    await until(lambda: len(master.announces) >= 3)
    assert len(master.streams) == streams
    assert not running.node.numbers()["master_connected"]
    master.epoch = 5
    await until(lambda: len(master.streams) > streams)


async def test_orders_of_a_deposed_master_are_refused(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    running.put(3)
    master.push(Drop(1, 4, whole_keyspace=True, keyspace=DIGEST))
    master.push(Drop(2, 5))
    await until(lambda: done(master) == [2])
    assert len(running.held()) == 3
    assert running.node.numbers()["stale_pushes"] == 1


async def test_a_drop_is_confirmed_after_what_it_freed(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    granted = running.put(4)
    await until(running.agrees)
    exact = DropList(DIGEST, b"", b"", granted.slots[:8], granted.generations[:16])
    master.push(Drop(1, 5, [exact]))
    master.push(Drop(2, 5, keyspace=DIGEST, hashes=running.hashes[64:96]))
    await until(lambda: done(master) == [1, 2])
    kinds = [type(op) for op in master.ops if isinstance(op, Freed | DropDone)]
    assert kinds == [Freed, DropDone, Freed, DropDone]
    assert len(running.held()) == 1
    master.push(Drop(3, 5, keyspace=DIGEST, whole_keyspace=True))
    await until(lambda: done(master) == [1, 2, 3])
    assert running.held() == {}


async def test_a_removal_asked_again_spares_what_was_put_since(running: Running, master: FakeMaster) -> None:
    """By the same master, by one of a newer epoch, and by one that a new process of the node hears."""
    await until(lambda: master.complete)
    running.put(4)
    order = (5, 1)
    master.push(Drop(1, 5, keyspace=DIGEST, whole_keyspace=True, order=order))
    await until(lambda: done(master) == [1] and not running.held())
    running.put(4)
    master.push(Drop(1, 5, keyspace=DIGEST, whole_keyspace=True, order=order))
    await until(lambda: done(master) == [1, 1])
    master.epoch = 6
    await until(lambda: running.node.numbers()["master_epoch"] == 6 and running.agrees())
    master.push(Drop(7, 6, keyspace=DIGEST, whole_keyspace=True, order=order))
    await until(lambda: done(master) == [1, 1, 7])
    await running.stop()
    await running.start()
    await until(lambda: len(master.streams) == 3 and running.agrees())
    master.push(Drop(8, 6, keyspace=DIGEST, whole_keyspace=True, order=order))
    await until(lambda: done(master)[-1] == 8)
    assert len(running.held()) == 4
    master.push(Drop(9, 6, keyspace=DIGEST, whole_keyspace=True, order=(6, 9)))
    await until(lambda: done(master)[-1] == 9)
    assert running.held() == {}
    told = [op.orders for op in master.ops if isinstance(op, Obeyed)]
    assert told == [b"", *[pack_u64(order)] * 2], "at the beginning of each stream"


async def test_a_removal_of_before_this_stream_spares_what_was_put_since(
    running: Running, master: FakeMaster
) -> None:
    await until(lambda: master.complete)
    running.put(2)
    master.epoch = 6
    await until(lambda: len(master.streams) == 2 and running.agrees())
    before = [op.next_generation for op in master.ops if isinstance(op, Obeyed)][-1]
    running.put(3)
    master.push(Drop(1, 6, keyspace=DIGEST, whole_keyspace=True, order=(5, 1), before=before))
    await until(lambda: done(master) == [1])
    assert len(running.held()) == 3
    await until(running.agrees)


async def test_a_removal_hits_what_is_about_to_be_written(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    running.put(2, commit=False)
    master.push(Drop(1, 5, keyspace=DIGEST, hashes=running.hashes[:32]))
    await until(lambda: done(master) == [1])
    with running.core.lock:
        assert running.core.commit(1, [running.puts]) == [bytes([9, 0])]
    await until(running.agrees)
    assert len(running.held()) == 1


async def test_orders_that_cannot_be_read_stop_nothing(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    running.put(2)
    master.push(Drop(1, 5, [DropList(DIGEST, b"", b"", b"123", b"")]))
    master.push(Drop(2, 5, keyspace=DIGEST, hashes=b"123"))
    master.push(Drop(3, 5, keyspace=bytes(16), hashes=bytes(32)))
    await until(lambda: 3 in done(master))
    assert done(master) == [3] and len(running.held()) == 2


async def test_a_confirmation_survives_the_loss_of_the_connection(
    running: Running, master: FakeMaster
) -> None:
    await until(lambda: master.complete)
    running.put(2)
    master.push(Drop(8, 5, keyspace=DIGEST, whole_keyspace=True))
    master.peers[-1].close()
    await until(lambda: len(master.streams) == 2 and running.agrees())
    # The push may have been lost with its connection; where it arrived, its answer must arrive too.
    if not running.held():
        await until(lambda: 8 in done(master))


async def test_a_check_is_answered_on_the_stream(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    running.put(1)
    ((slot, generation),) = running.held().items()
    for asked in (generation, generation + 1):
        master.push(Check(5, DIGEST, 0, running.hashes, slot, asked))
    await until(lambda: sum(isinstance(op, Checked) for op in master.ops) == 2)
    checks = [op for op in master.ops if isinstance(op, Checked)]
    assert [check.good for check in checks] == [True, False]


async def test_a_check_follows_what_was_moved_before_the_master_heard_of_it(
    running: Running, master: FakeMaster
) -> None:
    """Else a good block, asked for at its old place, would stay doubted until the master drops it."""
    await until(lambda: master.complete and not running.core.slots.sink.opening())
    granted = running.put(17)  # a page and one
    places = list(zip(u32s(granted.slots).tolist(), u64s(granted.generations).tolist(), strict=True))
    with running.core.lock:
        running.core.drops.exact([DropList(DIGEST, b"", b"", granted.slots[:4], granted.generations[:8])])
        assert running.core.moves.choose(8192)
        while running.core.moves.step(1 << 20):
            pass
    moved = next(place for place in places[1:] if place not in running.held().items())
    block = places.index(moved)
    master.push(Check(5, DIGEST, 0, running.hashes[32 * block : 32 * block + 32], *moved))
    await until(lambda: any(isinstance(op, Checked) for op in master.ops))
    (check,) = [op for op in master.ops if isinstance(op, Checked)]
    assert check.good and running.held()[check.slot] == check.generation
    await until(running.agrees)


async def test_orders_with_numbers_that_cannot_be_stop_nothing(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    master.push(Check(5, DIGEST, 0, bytes(32), -1, -1))
    master.push(Drop(1, 5))
    await until(lambda: done(master) == [1])


async def test_what_an_earlier_master_asked_is_not_confirmed_to_this_one(
    running: Running, master: FakeMaster
) -> None:
    """Drop ids begin anew with each master."""
    await until(lambda: master.complete)
    running.put(2)
    late = Drop(3, 5, keyspace=DIGEST, whole_keyspace=True)
    master.epoch = 6
    await until(lambda: running.node.numbers()["master_epoch"] == 6)
    masters = running.node._masters
    assert masters is not None
    (link,) = masters.links
    link._pushes.put(late)  # it waited in the queue while the masters changed
    master.push(Drop(4, 6))
    await until(lambda: done(master) == [4])
    assert running.held() == {}


async def test_need_is_answered_by_victims(running: Running, master: FakeMaster) -> None:
    await until(lambda: master.complete)
    granted = running.put(200)
    victims = DropList(DIGEST, b"", b"", granted.slots[: 4 * 64], granted.generations[: 8 * 64])
    master.victims = Victims([victims], 64 * 4096, -1, [(0, 5)])
    request = Begin(1, 1000, [BeginItem(DIGEST, 0, 0, b"", np.random.default_rng(99).bytes(32 * 80))])
    answer = await running.node._keeper.begin(1, request)
    assert answer.statuses == bytes(80)
    running.core.commit(1, [1000])
    await until(running.agrees)


@pytest.mark.parametrize("epoch", [5, 4])
async def test_victims_that_are_named_too_late_go_all_the_same(
    running: Running, master: FakeMaster, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """They are out of the index: nobody would ever name them again. Those of a deposed master stay."""
    await until(lambda: master.complete)
    granted = running.put(200)
    await until(running.agrees)
    victims = DropList(DIGEST, b"", b"", granted.slots[: 4 * 64], granted.generations[: 8 * 64])
    master.victims = Victims([victims], 64 * 4096, -1, [(0, epoch)])
    master.need_takes_s = 0.5
    monkeypatch.setattr(master_link, "CALL_TIMEOUT_S", 0.1)
    assert await running.node._masters.need(64 * 4096) is None
    assert len(running.held()) == 200
    await asyncio.sleep(0.6)
    await until(lambda: len(running.held()) == (136 if epoch == 5 else 200))


async def test_a_keyspace_is_told_before_its_first_entry(running: Running, master: FakeMaster) -> None:
    """FakeMaster asserts that it knows each op's keyspace."""
    await until(lambda: master.complete)
    assert DIGEST in master.keyspaces
    late = KeyspaceSpec(kind=Kind.FLAT, name="late", shard_bytes=(100,))
    running.node._register(late)
    with running.core.lock:
        running.core.begin(1, Begin(1, 77, [BeginItem(late.digest(), 0, 0, b"", bytes(32))]), partial=False)
        running.core.commit(1, [77])
    await until(lambda: len(master.index.index) == 1)
