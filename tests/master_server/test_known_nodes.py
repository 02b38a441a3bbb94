"""Nodes that a new master knows of by the store alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from master_server.test_hard_requests import HASHES, Life
from support.report_node import KEYSPACE, SPEC, ReportNode

from moonpool.master import hard_requests, known_nodes
from moonpool.schemas.messages import Clear, Drop, RegisterKeyspace, Remove


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
