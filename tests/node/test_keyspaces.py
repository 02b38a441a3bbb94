"""A segment's head that is full of keyspaces."""

from __future__ import annotations

import pytest
from support.node_sink import IndexSink

from moonpool.schemas.errors import Overloaded
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Begin, BeginItem, Granted
from moonpool.store_client.node import core as core_module
from moonpool.store_client.node.core import FORGET_EVERY_S, NodeCore
from moonpool.store_client.node.layout import ANNEX_BYTES, Layout
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.puts import LANES


def spec_of(number: int) -> KeyspaceSpec:
    facts = (("filler", "x" * 7000),)
    return KeyspaceSpec(kind=Kind.CHAINED, name=f"model {number}", shard_bytes=(4000,), identity=facts)


def test_a_full_head_is_looked_through_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of other hosts may register keyspaces in a loop; each look at all headers holds the node's lock."""
    looks = 0
    look = core_module.keyspace_words_in_use

    def counted(slots: core_module.Slots) -> set[int]:
        nonlocal looks
        looks += 1
        return look(slots)

    monkeypatch.setattr(core_module, "keyspace_words_in_use", counted)
    core = NodeCore(HeapMemory(Layout(1 << 20, 1)), IndexSink())
    number = 0
    while not looks:  # each with an object, so that none can be forgotten
        number += 1
        assert number < ANNEX_BYTES // 7000 + 2
        try:
            digest = core.register(spec_of(number), 10.0)
        except Overloaded:
            break
        item = BeginItem(digest, 0, 0, b"", number.to_bytes(32))
        assert isinstance(core.begin(LANES, Begin(LANES, number, [item]), partial=False), Granted)
    assert looks == 1
    for step in range(20):
        with pytest.raises(Overloaded):
            core.register(spec_of(1000 + step), 10.0 + step / 20 * FORGET_EVERY_S)
    assert looks == 1
    core.revoke(LANES, [1])  # one keyspace has no object any more
    with pytest.raises(Overloaded):
        core.register(spec_of(2000), 10.0 + 0.9 * FORGET_EVERY_S)
    core.register(spec_of(2000), 10.0 + FORGET_EVERY_S)
    assert looks == 2
    known = [spec.name for spec in core.keyspaces.specs()]
    assert "model 1" not in known and "model 2" in known and "model 2000" in known
    core.validate()
