"""ListKeys: what a segment holds of one keyspace, piece by piece."""

from __future__ import annotations

import pytest
from support.node_sink import IndexSink

from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, object_hash, objects_keyspace
from moonpool.schemas.messages import Begin, BeginItem, Granted, ListKeys
from moonpool.schemas.packed import join_hashes, pack_u64, split_hashes, u16s
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.listing import END, SLOTS_MAX, list_keys
from moonpool.store_client.node.memory import HeapMemory

OBJECTS = objects_keyspace()
RANKS = KeyspaceSpec(kind=Kind.FLAT, name="model", shard_bytes=(0,) * 8)
SESSION = 11
Listed = tuple[bytes, int, str]


@pytest.fixture
def core() -> NodeCore:
    core = NodeCore(HeapMemory(Layout(1 << 20, 8)), IndexSink())
    core.register(OBJECTS)
    core.register(RANKS)
    core.open_session(SessionRecord(SESSION, "/lock"))
    return core


def put(core: NodeCore, put_id: int, item: BeginItem, *, commit: bool = True) -> None:
    assert isinstance(core.begin(SESSION, Begin(SESSION, put_id, [item]), partial=False), Granted)
    if commit:
        core.commit(SESSION, [put_id])


def objects(keys: list[str], length: int = 100) -> BeginItem:
    hashes = join_hashes(object_hash(key) for key in keys)
    return BeginItem(OBJECTS.digest(), 0, 0, b"", hashes, pack_u64([length] * len(keys)), keys)


def listed(core: NodeCore, spec: KeyspaceSpec) -> tuple[list[Listed], int]:
    """Everything, and in how many pieces it came."""
    found: list[Listed] = []
    cursor, pieces = 0, 0
    while cursor != END:
        reply = list_keys(core.slots, ListKeys(spec.digest(), cursor))
        hashes = split_hashes(reply.hashes, spec.hash_bytes)
        found += zip(hashes, u16s(reply.ranks).tolist(), reply.keys, strict=True)
        cursor, pieces = reply.cursor, pieces + 1
    return found, pieces


def test_an_empty_segment(core: NodeCore) -> None:
    assert listed(core, OBJECTS) == ([], 1)


def test_committed_objects_with_their_key_texts(core: NodeCore) -> None:
    keys = ["plain", "ключ", "a\0b", "x" * 4000]
    put(core, 1, objects(keys))
    put(core, 2, objects(["large"], 300_000))
    put(core, 3, objects(["unfinished"]), commit=False)
    found, _ = listed(core, OBJECTS)
    assert sorted(found) == sorted((object_hash(key), 0, key) for key in [*keys, "large"])
    assert listed(core, RANKS)[0] == []


def test_ranks_without_key_texts(core: NodeCore) -> None:
    hashes = [bytes([i]) * 32 for i in range(3)]
    for rank in (0, 7):
        item = BeginItem(RANKS.digest(), rank, 0, b"", join_hashes(hashes), pack_u64([5000, 1, 70000]))
        put(core, 1 + rank, item)
    found, _ = listed(core, RANKS)
    assert sorted(found) == sorted((block_hash, rank, "") for block_hash in hashes for rank in (0, 7))


def test_many_objects_come_in_bounded_pieces(core: NodeCore) -> None:
    keys = [f"key-{i}" for i in range(3000)]
    put(core, 1, objects(keys))
    found, pieces = listed(core, OBJECTS)
    assert sorted(key for _, _, key in found) == sorted(keys)
    assert pieces >= len(keys) / SLOTS_MAX


def test_what_cannot_be_listed(core: NodeCore) -> None:
    with pytest.raises(KeyspaceUnknown):
        list_keys(core.slots, ListKeys(bytes(16)))
    for cursor in (-1, 8 << 16, 1 << 62):
        with pytest.raises(InvalidParams, match="cursor"):
            list_keys(core.slots, ListKeys(OBJECTS.digest(), cursor))
    reply = list_keys(core.slots, ListKeys(OBJECTS.digest(), (7 << 16) | 0xFFFF))
    assert (reply.keys, reply.cursor) == ([], END)
