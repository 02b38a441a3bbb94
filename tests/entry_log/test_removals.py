"""A removal that was acknowledged is not undone by a take-over, though the entry log is older than it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from entry_log.lives import T_S, Life
from support.report_node import KEYSPACE, SPEC, ReportNode, chain, entries_of

from moonpool.master.entry_log.voids import void_prefix
from moonpool.master.store.base import Page, Put, Write
from moonpool.schemas.errors import StoreFailed
from moonpool.schemas.messages import (
    Clear,
    InventoryEnd,
    Message,
    PutAnswer,
    PutItem,
    PutStart,
    PutStarted,
    RegisterKeyspace,
    Remove,
    Removed,
)

HASHES = chain(3000)


class Stage:
    """One node and one master over a file, whose log is written when a test says so."""

    def __init__(self, path: Path) -> None:
        self.node = ReportNode()
        self.life = Life(f"file:{path}/hard-state", log_every_s=3600)
        self.commits: list[Sequence[Write]] = []
        self.gate: asyncio.Event | None = None
        """Writes of the log wait for it."""
        self.waiting = asyncio.Event()

    async def start(self) -> None:
        await self.life.start()
        store = self.life.server._store._store
        commit = store.commit

        async def watched(writes: Sequence[Write], **more: Any) -> int | None:
            self.commits.append(writes)
            if self.gate is not None and any(one.key.startswith(b"log/") for one in writes):  # type: ignore[union-attr]
                self.waiting.set()
                await self.gate.wait()
            return await commit(writes, **more)

        store.commit = watched  # type: ignore[method-assign]

    async def kill(self) -> None:
        """Nothing more is written."""
        assert self.life.server._logs is not None
        self.life.server._logs.disown(0)
        await self.node.close()
        await self.life.close()

    async def take_over(self, hints: int) -> None:
        """The next master has read its log, and the node is there and has not said a block."""
        await self.kill()
        await self.take_over_again(hints)

    async def take_over_again(self, hints: int) -> None:
        """The same, where nobody is there."""
        await self.start()
        await self.life.until(lambda facts: facts["log_shards_read"] == 1)
        assert (await self.life.facts())["log_hints"] == hints
        await self.node.connect(self.life.address)
        await self.node.announce()

    async def log(self) -> None:
        """A pass over the index."""
        assert self.life.server._logs is not None
        await self.life.server._logs.flush([0])

    async def voids(self) -> int:
        page: Page = await self.life.server._store.read(void_prefix(0), timeout_s=T_S)
        return len(page.records)

    async def ask(self, message: Message) -> Message:
        return await self.life.client.call(message, T_S)

    async def remove(self, *hashes: bytes) -> None:
        assert isinstance(await self.ask(Remove(KEYSPACE, b"".join(hashes), True)), Removed)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """With 3,000 blocks that are in the log."""
    made = Stage(tmp_path)
    await made.start()
    await made.ask(RegisterKeyspace(SPEC))
    await made.node.join(made.life.address, HASHES)
    await made.log()
    yield made
    await made.kill()


@pytest.mark.parametrize("message", [Remove(KEYSPACE, HASHES[3], True), Clear(KEYSPACE)])
async def test_what_was_removed_is_not_matched_by_the_next_owner(stage: Stage, message: Message) -> None:
    assert await stage.life.ready() == 64
    await stage.ask(message)
    assert await stage.voids() == 1
    await stage.take_over(hints=0)
    assert await stage.life.ready() == 0
    await stage.node.start_stream(HASHES[:3])
    assert await stage.life.ready() == 3
    await stage.log()
    assert await stage.voids() == 0, "the log says the same as the index"
    await stage.take_over(hints=3)
    assert await stage.life.ready() == 3


async def test_a_dry_run_voids_nothing(stage: Stage) -> None:
    await stage.ask(Remove(KEYSPACE, HASHES[3], True, dry_run=True))
    await stage.ask(Clear(KEYSPACE, dry_run=True))
    assert await stage.voids() == 0
    await stage.take_over(hints=3000)
    assert await stage.life.ready() == 64


async def test_many_removals_cost_one_record(stage: Stage) -> None:
    stage.commits.clear()
    await asyncio.gather(*(stage.remove(HASHES[i]) for i in range(2999, 2980, -1)))
    for i in range(2980, 2950, -1):
        await stage.remove(HASHES[i])
    assert len(stage.commits) == 1 and await stage.voids() == 1


async def test_a_removal_while_the_log_is_being_written(stage: Stage) -> None:
    """What is written may still have the row."""
    await stage.remove(HASHES[2000])
    stage.gate = asyncio.Event()
    passing = asyncio.create_task(stage.log())
    await stage.waiting.wait()
    await stage.remove(HASHES[1000])
    stage.gate.set()
    await passing
    assert await stage.voids() == 1
    await stage.log()
    assert await stage.voids() == 0
    await stage.remove(HASHES[900])
    assert await stage.voids() == 1, "after it was taken back it is written again"


async def test_a_removal_while_hints_are_being_read(stage: Stage) -> None:
    await stage.kill()
    await stage.life.start()
    logs = stage.life.server._logs
    assert logs is not None
    voids = logs._shards[0].voids
    await stage.life.until(lambda facts: facts["log_hints"] == 3000)
    await stage.remove(HASHES[10])
    page = await stage.life.server._store.read(b"log/", records_max=1, timeout_s=T_S)
    logs._hint(0, page.records[0].key, page.records[0].value, voids)  # a chunk that comes after it
    await stage.node.connect(stage.life.address)
    await stage.node.announce()
    assert await stage.life.ready() == 10


async def test_a_removal_that_the_store_has_no_word_of_is_not_acknowledged(stage: Stage) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise StoreFailed(store="it", reason="no room")

    store = stage.life.server._store._store
    kept, store.commit = store.commit, refused  # type: ignore[method-assign]
    with pytest.raises(StoreFailed, match="no room"):
        await stage.remove(HASHES[10])
    store.commit = kept  # type: ignore[method-assign]
    await stage.remove(HASHES[10])
    assert await stage.voids() == 1


async def test_a_block_that_only_the_log_knows_may_be_put_again(stage: Stage) -> None:
    """Or a put of what was evicted since would be dropped. What is there all the same is a surplus copy then."""
    other = ReportNode("n2")
    await stage.take_over(hints=3000)
    item = PutItem(KEYSPACE, 0, 0, bytes(16), b"".join(HASHES[:20]), 4096)

    async def answers() -> list[int]:
        reply = await stage.ask(PutStart([item]))
        assert isinstance(reply, PutStarted)
        return list(reply.answers[0])

    assert await answers() == [PutAnswer.GO] * 20
    await other.join(stage.life.address, [])
    await other.report([entries_of(HASHES[:20])])
    assert await answers() == [PutAnswer.EXISTS] * 20
    await stage.node.start_stream(HASHES[10:11])
    await stage.life.until(lambda facts: facts["rows"] == 20)
    assert await stage.life.ready() == 20, "the copies that were put have not given way to hints"
    await other.report([InventoryEnd()])
    await other.close()


async def test_a_log_that_nobody_goes_on_with_is_removed(stage: Stage) -> None:
    await stage.kill()
    settings = stage.life._settings
    stage.life._settings = settings.model_copy(update={"log_every_s": 0})
    await stage.life.start()
    async with asyncio.timeout(T_S):
        while (await stage.life.server._store.read(b"log/", timeout_s=T_S)).records:
            await asyncio.sleep(0.02)
    await stage.life.close()
    stage.life._settings = settings
    await stage.take_over_again(hints=0)


async def test_a_pass_that_fails_takes_nothing_back(stage: Stage) -> None:
    await stage.remove(HASHES[2000])
    store = stage.life.server._store._store
    kept = store.commit

    async def fails(writes: Sequence[Write], **more: Any) -> int | None:
        if any(isinstance(one, Put) for one in writes):
            raise StoreFailed(store="it", reason="no room")
        return await kept(writes, **more)

    store.commit = fails  # type: ignore[method-assign]
    await stage.log()
    assert await stage.voids() == 1
    store.commit = kept  # type: ignore[method-assign]
