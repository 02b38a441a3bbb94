"""The client of a pool whose index has several shards, at one master."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from client.chains import all_ok, chained, get_chain, put_chain
from client.pool import SIZE_BYTES, MakeClient, wait_for_nodes
from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

from moonpool.schemas.messages import Status
from moonpool.store_client import KeyspaceSpec, Kind, StoreClient

BLOCK = 4096
SHARDS = 5


class ShardedPool:
    """One master with several shards, and a node."""

    def __init__(self, master: MasterProcess, node: NodeProcess) -> None:
        self.master, self.node = master, node


@pytest.fixture(scope="module")
def sharded() -> Iterator[ShardedPool]:
    with (
        MasterProcess(["--shards", str(SHARDS)]) as master,
        NodeProcess(master, size=SIZE_BYTES, prefault=False) as node,
    ):
        yield ShardedPool(master, node)


@pytest.fixture(params=["shm", "tcp"])
def client(request: pytest.FixtureRequest, sharded: ShardedPool, make_client: MakeClient) -> StoreClient:
    made = make_client(sharded, transport=request.param)
    wait_for_nodes(made)
    return made


def chain(name: str, count: int) -> list[bytes]:
    return [hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(count)]


def test_a_chain_over_many_runs(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained("shards", BLOCK))
    hashes = chain(client.settings.transport, 1100)
    assert all_ok(put_chain(client, keyspace, hashes, BLOCK))
    wait_until(lambda: client.match(keyspace, hashes) == 1100)
    assert all_ok(get_chain(client, keyspace, hashes, BLOCK))
    assert client.renew(keyspace, hashes) == [True] * 4
    assert client.pin(keyspace, hashes[600:601]) == 1, "nobody said which run that is"
    assert client.describe(keyspace, hashes[600]).pinned
    assert client.unpin(keyspace, hashes[600:601]) == 1
    assert client.remove(keyspace, hashes[600:601], force=True).count == 424
    assert client.match(keyspace, hashes) == 600
    client.clear(keyspace)
    assert client.match(keyspace, hashes) == 0


def test_rows_of_a_flat_keyspace(client: StoreClient) -> None:
    keyspace = client.register_keyspace(KeyspaceSpec(kind=Kind.FLAT, name="window", shard_bytes=(BLOCK,)))
    hashes = chain(client.settings.transport, 40)
    assert all_ok(put_chain(client, keyspace, hashes, BLOCK))
    wait_until(lambda: all(client.presence(keyspace, hashes)))
    assert all_ok(get_chain(client, keyspace, hashes[::-1], BLOCK))
    assert client.renew(keyspace, hashes) == [True] * 40
    assert client.remove(keyspace, hashes[:7], force=True).count == 7
    assert client.presence(keyspace, hashes) == [False] * 7 + [True] * 33


def test_objects_are_read_after_their_writes(client: StoreClient) -> None:
    keys = [f"{client.settings.transport} {i}" for i in range(200)]
    values = [key.encode() * (1 + i % 7) for i, key in enumerate(keys)]
    assert client.batch_put(keys, values) == [Status.OK] * 200
    assert client.batch_is_exist([*keys, "nobody's"]) == [True] * 200 + [False]
    assert client.batch_get(keys) == values
    assert client.batch_put(keys[:9], values[:9]) == [Status.EXISTS] * 9
    assert client.batch_remove(keys[:50], force=True).count == 50
    assert client.batch_is_exist(keys) == [False] * 50 + [True] * 150
    assert client.batch_put(keys[:50], values[:50]) == [Status.OK] * 50


def test_every_shard_is_used_and_a_restarted_master_learns_all_of_them_again(
    sharded: ShardedPool, make_client: MakeClient
) -> None:
    client = make_client(sharded)
    wait_for_nodes(client)
    keys = [f"again {i}" for i in range(100)]
    assert client.batch_put(keys, [b"value"] * 100) == [Status.OK] * 100
    before = client.status()
    assert before["shards"] == before["shards_owned"] == SHARDS
    sharded.master.kill()
    sharded.master.start()
    wait_until(lambda: client.status()["copies"] == before["copies"], 20)
    wait_until(lambda: client.batch_get(keys) == [b"value"] * 100)
