"""Removals and the store: nodes that a new master knows by their records alone, records that come and go, pins that stay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from master_server.test_hard_requests import HASHES, T_S, Life
from support.report_node import KEYSPACE, SPEC, ReportNode

from moonpool.master import hard_requests, known_nodes
from moonpool.master.node import OUTSTANDING_MAX
from moonpool.master.store.base import Delete, Put, Write
from moonpool.schemas.errors import StoreFailed
from moonpool.schemas.messages import Clear, Drop, Freed, Message, Pin, RegisterKeyspace, Remove
from moonpool.schemas.packed import pack_u16, pack_u32, pack_u64


def freed_of(hashes: list[bytes], index: int) -> Freed:
    """One block of `entries_of`."""
    return Freed(KEYSPACE, pack_u16([0]), hashes[index], pack_u32([index]), pack_u64([index + 1]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hard-state"


@pytest.mark.parametrize("whole", [False, True])
async def test_a_removal_reaches_nodes_that_a_new_master_has_not_heard_of(path: Path, whole: bool) -> None:
    """Nor read of in an entry log. Else it would come back with the node's inventory."""
    node, other = ReportNode("n1"), ReportNode("n2")
    async with Life(path, log_every_s=0) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        await other.join(life.address, [])
        await life.until(lambda facts: facts["recorded_nodes"] == 2)
        await node.close()
        await other.close()
    async with Life(path, log_every_s=0) as life:
        dry = await life.call(Remove(KEYSPACE, HASHES[3], True, dry_run=True))
        assert (dry.count, (await life.facts())["recorded_removals"]) == (0, 0)  # type: ignore[attr-defined]
        reply = await life.call(Clear(KEYSPACE) if whole else Remove(KEYSPACE, HASHES[3], True))
        assert (reply.count, reply.pending) == (0, [])  # type: ignore[attr-defined]
        assert (await life.facts())["recorded_removals"] == 2
        await other.join(life.address, [])
        await life.until(lambda facts: facts["recorded_removals"] == 1)
    async with Life(path, log_every_s=0) as life:  # and nobody before this one was told by the node
        await node.join(life.address, HASHES)
        assert await life.ready() == (0 if whole else 3)
        asked = next(push for push in node.pushes if isinstance(push, Drop) and push.keyspace)
        assert (asked.whole_keyspace, asked.hashes) == (whole, b"" if whole else HASHES[3])
        await life.until(lambda facts: facts["recorded_removals"] == 0)
        await node.close()
    await other.close()


async def removal_that_was_pushed_out(life: Life, back: ReportNode) -> asyncio.Task[Message]:
    """Under way, of a node that was not there to confirm it and is `back`, after so many others that it isn't told again."""
    node = ReportNode(back.name, confirms=False)
    await life.call(RegisterKeyspace(SPEC))
    await node.join(life.address, HASHES)
    removing = asyncio.create_task(life.call(Remove(KEYSPACE, HASHES[9], True, 1500)))
    await life.until(lambda facts: facts["rows"] == 9)
    for index in range(OUTSTANDING_MAX + 5):
        await life.call(Remove(KEYSPACE, bytes([index]) * 16, True, 0))
    await node.close()
    await back.join(life.address, HASHES)
    return removing


async def test_a_node_that_is_back_is_told_of_all_that_it_has_missed(path: Path) -> None:
    """Also where so much was removed meanwhile that the order had left what it is told when it comes."""
    back = ReportNode("n1")
    async with Life(path) as life:
        removing = await removal_that_was_pushed_out(life, back)
        assert not any(HASHES[9] in push.hashes for push in back.pushes if isinstance(push, Drop))
        reply = await removing
        assert (reply.count, reply.pending) == (1, [])  # type: ignore[attr-defined]
        assert any(HASHES[9] in push.hashes for push in back.pushes if isinstance(push, Drop))
        await back.close()


async def test_one_that_does_not_confirm_even_then_holds_no_removal_up(path: Path) -> None:
    back = ReportNode("n1", confirms=False)
    async with Life(path) as life:
        removing = await removal_that_was_pushed_out(life, back)
        reply = await removing
        back._confirms = True
        await back.close()
        assert reply.count == 1  # type: ignore[attr-defined]


async def test_nodes_that_nobody_hears_of_leave_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hard_requests, "EXPIRE_EVERY_S", 0.0)
    node = ReportNode("n1")
    async with Life(path) as life:
        await node.join(life.address, [])
        await life.until(lambda facts: facts["recorded_nodes"] == 1)
        await node.close()
    async with Life(path) as life:
        assert (await life.facts())["recorded_nodes"] == 1
        monkeypatch.setattr(known_nodes, "FORGET_S", 0.0)
        await life.until(lambda facts: facts["recorded_nodes"] == 0)


async def test_a_node_that_comes_while_a_removal_is_recorded_for_it_hears_of_it(path: Path) -> None:
    node = ReportNode("n1")
    async with Life(path, log_every_s=0) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, [])
        await life.until(lambda facts: facts["recorded_nodes"] == 1)
        await node.close()
    async with Life(path, log_every_s=0) as life:
        store = life.server._store._store
        commit, reached, gate = store.commit, asyncio.Event(), asyncio.Event()

        async def gated(writes: Sequence[Write], **more: Any) -> int | None:
            if any(isinstance(one, Put) and one.key.startswith(b"removals/") for one in writes):
                reached.set()
                await gate.wait()
            return await commit(writes, **more)

        store.commit = gated  # type: ignore[method-assign]
        removing = asyncio.create_task(life.call(Remove(KEYSPACE, HASHES[3], True)))
        await reached.wait()
        await node.join(life.address, HASHES)
        assert await life.ready() == 10, "nobody has been told that it is removed"
        gate.set()
        while not any(isinstance(push, Drop) and push.hashes == HASHES[3] for push in node.pushes):
            await asyncio.sleep(0.01)
        await node.report([freed_of(HASHES, 3)])
        assert (await removing).pending == []  # type: ignore[attr-defined]
        await life.until(lambda facts: facts["recorded_removals"] == 0)
        assert await life.ready() == 3
        await node.close()


async def test_a_deletion_that_failed_is_said_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = ReportNode("n1")
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        await node.close()
        await life.call(Remove(KEYSPACE, HASHES[3], True))
        assert (await life.facts())["recorded_removals"] == 1
        store = life.server._store._store
        commit, failed = store.commit, asyncio.Event()

        async def fails(writes: Sequence[Write], **more: Any) -> int | None:
            if any(isinstance(one, Delete) and one.key.startswith(b"removals/") for one in writes):
                failed.set()
                raise StoreFailed(store="it", reason="away")
            return await commit(writes, **more)

        store.commit = fails  # type: ignore[method-assign]
        await node.join(life.address, HASHES)
        await failed.wait()
        store.commit = commit  # type: ignore[method-assign]
        monkeypatch.setattr(hard_requests, "EXPIRE_EVERY_S", 0.0)
        await life.until(lambda facts: facts["recorded_removals"] == 0)
        await node.close()


async def test_a_record_whose_answer_was_lost_leaves_the_store_all_the_same(path: Path) -> None:
    node = ReportNode("n1")
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        await node.close()
        store = life.server._store._store
        commit = store.commit

        async def forgetful(writes: Sequence[Write], **more: Any) -> int | None:
            revision = await commit(writes, **more)
            if any(isinstance(one, Put) and one.key.startswith(b"removals/") for one in writes):
                raise StoreFailed(store="it", reason="no answer")
            return revision

        store.commit = forgetful  # type: ignore[method-assign]
        reply = await life.call(Remove(KEYSPACE, HASHES[3], True))
        assert reply.pending == ["n1"], "nobody knows whether it is recorded"  # type: ignore[attr-defined]
        assert len((await store.read(b"removals/", timeout_s=T_S)).records) == 1
        await node.join(life.address, HASHES)
        async with asyncio.timeout(T_S):
            while (await store.read(b"removals/", timeout_s=T_S)).records:
                await asyncio.sleep(0.02)
        await node.close()


async def test_a_removal_ends_no_pin_of_a_row_that_leaves_meanwhile_for_another_reason(path: Path) -> None:
    """A node that is lost, or an inventory that doesn't name it: it holds again when the row is back."""
    node, slow = ReportNode("n1"), ReportNode("n2", confirms=False)
    async with Life(path) as life:
        await life.call(RegisterKeyspace(SPEC))
        await node.join(life.address, HASHES)
        await slow.join(life.address, [])
        await life.count(Pin(KEYSPACE, HASHES[3]))
        await life.count(Pin(KEYSPACE, HASHES[9]))
        removing = asyncio.create_task(life.call(Remove(KEYSPACE, HASHES[9], True, 1000)))
        await life.until(lambda facts: facts["rows"] == 9)
        await node.report([freed_of(HASHES, index) for index in range(8, 2, -1)])
        assert (await life.facts())["rows"] == 3
        assert (await removing).count == 1  # type: ignore[attr-defined]
        assert (await life.facts())["recorded_pins"] == 1, "that of what was removed has ended"
        await node.close()
        await slow.close()
    async with Life(path) as life:
        await node.join(life.address, HASHES[:9])
        assert (await life.facts())["pins"] == 1
        await node.close()
