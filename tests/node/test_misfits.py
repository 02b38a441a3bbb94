"""Headers that a stray write left: clients map the segment writable, and one such slot must not cut the node off."""

from __future__ import annotations

import pytest
from support.node_sink import IndexSink

from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Begin, BeginItem, DropList, Entries, Freed, Granted
from moonpool.schemas.packed import U32, u16s, u32s
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.inventory import Inventory
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.puts import LANES

SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="model", shard_bytes=(4000, 4000))
BLOCKS = 4


def committed() -> tuple[NodeCore, IndexSink, U32, Granted]:
    """A core with BLOCKS committed blocks of rank 1."""
    sink = IndexSink()
    core = NodeCore(HeapMemory(Layout(1 << 20, 1)), sink)
    digest = core.register(SPEC)
    hashes = b"".join(bytes([i]) * 32 for i in range(1, BLOCKS + 1))
    granted = core.begin(LANES, Begin(LANES, 1, [BeginItem(digest, 1, 0, b"", hashes)]), partial=False)
    assert isinstance(granted, Granted)
    core.commit(LANES, [1])
    return core, sink, u32s(granted.slots), granted


@pytest.mark.parametrize(
    ("field", "value"), [("rank", 7), ("length", 3999), ("hash_bytes", 16), ("keyspace", 5)]
)
def test_an_inventory_frees_what_does_not_fit_and_names_the_rest(field: str, value: int) -> None:
    core, sink, slots, _ = committed()
    core.slots.headers.fields[field][core.slots.rows(slots[1:2])] = value
    told = len(sink.ops)
    inventory, named = Inventory(core.slots), []
    while not inventory.done:
        for entries in inventory.next_entries():
            assert set(u16s(entries.ranks)) == {1}
            named += u32s(entries.slots).tolist()
    assert sorted(named) == sorted(slots[[0, 2, 3]].tolist())
    assert len(sink.ops) == told, "what means nothing is not reported"
    core.validate()


def test_a_drop_of_one_reports_nothing_that_the_master_would_refuse() -> None:
    core, sink, slots, granted = committed()
    core.slots.headers.fields["rank"][core.slots.rows(slots[:1])] = 7
    drop = DropList(SPEC.digest(), b"", b"", granted.slots, granted.generations)
    core.drops.exact([drop])
    freed = [op for op in sink.ops if isinstance(op, Freed)]
    assert [rank for op in freed for rank in u16s(op.ranks)] == [1] * (BLOCKS - 1)
    assert all(isinstance(op, (Entries, Freed)) for op in sink.ops)
    core.validate()
