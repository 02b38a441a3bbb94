"""Which slots a removal by name means: the same in C as in Python, whatever the headers say."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from support.node_sink import IndexSink

from moonpool.schemas.header import SlotState, keyspace_word, word_of
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Begin, BeginItem
from moonpool.store_client import native
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.drops import hash_set
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory

SPECS = [
    KeyspaceSpec(kind=Kind.FLAT, name="state", shard_bytes=(size,), hash_bytes=bytes_)
    for size, bytes_ in [(1000, 16), (3000, 32)]
]
PAGES = 24
NAMES = np.random.default_rng(1).integers(0, 256, (200, 32), dtype=np.uint8)
NAMES[100:] = NAMES[:100]
NAMES[100:, 31] ^= 1  # differ at their end
NAMES[50:100, 16:] = 0

needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")


def core_of(seed: int) -> NodeCore:
    """Pages cut for two sizes, and headers that say anything."""
    core = NodeCore(HeapMemory(Layout(64 << 10, PAGES)), IndexSink())
    core.open_session(SessionRecord(1, "/lock"))
    for put_id, (spec, count) in enumerate(zip(SPECS, (200, 200), strict=True), 1):
        core.register(spec)
        hashes = NAMES[:count, : spec.hash_bytes].tobytes()
        core.begin(1, Begin(1, put_id, [BeginItem(spec.digest(), 0, 0, b"", hashes)]), partial=False)
    random, fields = np.random.default_rng(seed), core.slots.headers.fields
    states = random.choice(list(SlotState), len(fields))
    fields["word"] = [word_of(state, int(random.integers(1, 9))) for state in states]
    fields["keyspace"] = random.choice([keyspace_word(spec.digest()) for spec in SPECS], len(fields))
    fields["shard"] = random.integers(0, 2, len(fields))
    fields["block_hash"] = NAMES[random.integers(0, 200, len(fields))].reshape(-1).view("S32")
    return core


@needs_c
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize("named", [None, 0, 1, 3, 50, 200])
def test_c_finds_what_python_finds(seed: int, before: int, named: int | None) -> None:
    core, spec = core_of(seed), SPECS[1]
    hashes = None if named is None else hash_set(NAMES[200 - named :].tobytes(), spec.hash_bytes)
    found = []
    for word in (keyspace_word(spec.digest()), 7):
        for shard in (0, 1):
            for pages in (range(PAGES), range(1, 2), range(PAGES, PAGES)):
                slots = core.drops._meant(pages, word, shard, before, hashes)
                names = None if hashes is None else hashes.tobytes()
                fast = native.sweep(core.slots.native_layout, pages, word, shard, before, names)
                assert fast.tolist() == slots.tolist()
                found.append(len(slots))
    assert any(found) or named in (0, 1, 3), "nothing was looked for"


@pytest.mark.parametrize("fast", [pytest.param(True, marks=needs_c), False])
def test_a_sweep_frees_and_dooms(fast: bool) -> None:
    core = NodeCore(HeapMemory(Layout(64 << 10, PAGES)), IndexSink())
    core.open_session(SessionRecord(1, "/lock"))
    spec = SPECS[0]
    core.register(spec)
    for put_id, part in enumerate((slice(0, 40), slice(40, 60)), 1):
        item = BeginItem(spec.digest(), 0, 0, b"", NAMES[part, :16].tobytes())
        core.begin(1, Begin(1, put_id, [item]), partial=False)
    core.commit(1, [1])
    hashes = hash_set(NAMES[30:50, :16].tobytes(), 16)
    with patch.object(native, "HOT", fast):
        assert core.drops.sweep(spec.digest(), hashes, 0) == 20
        assert core.drops.sweep(spec.digest(), hashes, 0) == 10, "ten are doomed, and their writer's still"
    (statuses,) = core.commit(1, [2])
    assert statuses == bytes([9]) * 10 + bytes(10)  # GONE
    assert core.slots.committed == 40


@pytest.mark.parametrize("fast", [pytest.param(True, marks=needs_c), False])
def test_what_a_sweep_frees_is_told_in_parts(fast: bool) -> None:
    """A master takes a moment for each."""
    sink = IndexSink()
    core = NodeCore(HeapMemory(Layout(1 << 20, 16)), sink)
    core.open_session(SessionRecord(1, "/lock"))
    spec = SPECS[0]
    core.register(spec)
    hashes = np.random.default_rng(2).bytes(16 * 3000)
    core.begin(1, Begin(1, 1, [BeginItem(spec.digest(), 0, 0, b"", hashes)]), partial=False)
    core.commit(1, [1])
    told: list[int] = []
    with (
        patch.object(native, "HOT", fast),
        patch.object(core.slots, "forget", lambda gone: told.append(len(gone))),
    ):
        assert core.drops.sweep(spec.digest(), None, 0) == 3000
    assert told == [1024, 1024, 952]


@needs_c
def test_what_does_not_fit_is_refused() -> None:
    layout = core_of(0).slots.native_layout
    with pytest.raises(ValueError, match="no such pages"):
        native.sweep(layout, range(PAGES + 1), 1, 0, 0, None)
    with pytest.raises(ValueError, match="no such pages"):
        native.sweep(layout, range(1), 1, 0, 0, bytes(31))
