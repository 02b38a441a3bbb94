"""Nothing moves while a removal is due that tells old from new by generations."""

from __future__ import annotations

import asyncio

import pytest
from node.test_checksums import Stored
from support.node_sink import IndexSink

from moonpool.schemas.messages import Drop
from moonpool.store_client.node import pushes as pushes_module
from moonpool.store_client.node.pushes import Pushes


def movable(stored: Stored) -> bool:
    """Whether a page can be chosen; it stays."""
    chosen = stored.core.moves.choose(4096)
    if chosen:
        stored.core.slots.allocator.open_page()
    return chosen


def test_until_a_master_has_taken_the_first_message_of_its_stream() -> None:
    stored = Stored()
    stored.drop(6)
    sink = stored.core.slots.sink
    assert isinstance(sink, IndexSink)
    assert movable(stored)
    sink.unopened = True
    assert not movable(stored)
    sink.unopened = False
    assert stored.core.moves.choose(4096)
    sink.unopened = True
    before = dict(sink.index)
    assert not stored.core.moves.step(1 << 20) and sink.index == before


async def test_from_the_moment_that_a_removal_of_before_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored()
    monkeypatch.setattr(pushes_module, "PUSHES_MAX", 2)
    stored.drop(6)
    pushes = Pushes(stored.core)
    pushes.put(Drop(1, 1))
    assert movable(stored)
    pushes.put(Drop(2, 1, before=9))
    with pytest.raises(asyncio.QueueFull):
        pushes.put(Drop(3, 1, before=9))
    assert not movable(stored)
    pushes.done(await pushes.get())
    assert not movable(stored)
    taken = await pushes.get()
    assert not movable(stored), "it is being done"
    pushes.done(taken)
    assert movable(stored)
    pushes.put(Drop(4, 1, before=9))
    pushes.clear()
    assert movable(stored) and stored.core.drops.sweeps == 0
