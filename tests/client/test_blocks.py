"""Blocks through real processes, over shm and tcp: contents follow from keys and are all checked."""

from __future__ import annotations

import time

import numpy as np
import pytest
from client.chains import Engine, all_ok, chained, get_chain, put_chain
from client.pool import MakeClient, Pool
from support.payloads import chain_hashes
from support.waiting import wait_until

from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown
from moonpool.schemas.messages import Status
from moonpool.store_client import BlockGet, BlockPut, KeyspaceSpec, Kind, StoreClient

BLOCK_BYTES = 64 << 10


def wait_match(client: StoreClient, keyspace: bytes, chain: list[bytes], ready: int) -> None:
    """Puts of blocks don't wait for the master to have heard of them."""
    wait_until(lambda: client.match(keyspace, chain) == ready)


@pytest.mark.parametrize("fragments", [1, 2, 32, 128])
def test_put_match_get(client: StoreClient, fragments: int) -> None:
    keyspace = client.register_keyspace(chained(f"{client.settings.transport} {fragments}"))
    chain = chain_hashes("prompt", 100)  # crosses the boundary at 64
    assert client.match(keyspace, chain) == 0
    assert all_ok(put_chain(client, keyspace, chain, BLOCK_BYTES, fragments=fragments))
    wait_match(client, keyspace, chain, 100)
    assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES, fragments=fragments))
    assert client.renew(keyspace, chain) == [True, True]
    assert client.match(keyspace, [*chain[:70], *chain_hashes("other", 30)]) == 70


def test_odd_sizes_and_many_runs(client: StoreClient) -> None:
    size_bytes = 3 * 576 * 2 + 10
    keyspace = client.register_keyspace(chained(client.settings.transport + "odd", size_bytes))
    chain = chain_hashes("long", 1200)
    assert all_ok(put_chain(client, keyspace, chain, size_bytes, fragments=2))
    wait_match(client, keyspace, chain, 1200)
    assert all_ok(get_chain(client, keyspace, chain, size_bytes, fragments=2))


def test_ranks_are_apart_and_ready_together(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained(client.settings.transport + "tp", BLOCK_BYTES, world=2))
    chain = chain_hashes("prompt", 10)
    assert all_ok(put_chain(client, keyspace, chain, BLOCK_BYTES, rank=0))
    time.sleep(0.1)
    assert client.match(keyspace, chain) == 0
    assert all_ok(put_chain(client, keyspace, chain, BLOCK_BYTES, rank=1))
    wait_match(client, keyspace, chain, 10)
    for rank in (0, 1):
        assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES, rank=rank))


def test_a_middle_part_is_put_and_got(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained(client.settings.transport + "middle"))
    chain = chain_hashes("prompt", 90)
    head, tail = Engine(40, BLOCK_BYTES), Engine(50, BLOCK_BYTES, 4)
    head.fill(chain[:40], 0)
    tail.fill(chain[40:], 0)
    puts = [
        BlockPut(keyspace, 0, chain, 0, head.fragments),
        BlockPut(keyspace, 0, chain, 40, tail.fragments),
    ]
    first, second = client.put_blocks(puts)
    assert all_ok(first)
    assert all_ok(second)
    wait_match(client, keyspace, chain, 90)
    got = Engine(50, BLOCK_BYTES, 4, seed=5)
    statuses = client.get_blocks(BlockGet(keyspace, 0, chain, 40, got.fragments))
    assert all_ok(statuses)
    assert not got.wrong(chain[40:], 0, statuses)


def test_what_is_there_is_not_written_again(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained(client.settings.transport + "again"))
    chain = chain_hashes("prompt", 20)
    put_chain(client, keyspace, chain[:12], BLOCK_BYTES)
    wait_match(client, keyspace, chain[:12], 12)
    statuses = put_chain(client, keyspace, chain, BLOCK_BYTES)
    assert (statuses[:12] == Status.EXISTS).all()
    assert all_ok(statuses[12:])


def test_a_run_without_its_beginning_is_refused(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained(client.settings.transport + "orphan"))
    chain = chain_hashes("prompt", 20)
    engine = Engine(10, BLOCK_BYTES)
    statuses = client.put_blocks([BlockPut(keyspace, 0, chain, 10, engine.fragments)])[0]
    assert (statuses == Status.NO_PARENT).all()


def test_missing_blocks_don_t_lose_the_others(client: StoreClient) -> None:
    spec = KeyspaceSpec(kind=Kind.FLAT, name=f"flat {client.settings.transport}", shard_bytes=(BLOCK_BYTES,))
    keyspace = client.register_keyspace(spec)
    hashes = chain_hashes("rows", 30)
    engine = Engine(15, BLOCK_BYTES)
    engine.fill(hashes[::2], 0)
    assert all_ok(client.put_blocks([BlockPut(keyspace, 0, hashes[::2], 0, engine.fragments)])[0])
    wait_until(lambda: all(client.presence(keyspace, hashes[::2])))
    assert client.presence(keyspace, hashes) == [i % 2 == 0 for i in range(30)]
    statuses = get_chain(client, keyspace, hashes, BLOCK_BYTES)
    assert statuses.tolist() == [Status.OK if i % 2 == 0 else Status.MISSING for i in range(30)]


def test_remove_pin_clear_describe(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained(client.settings.transport + "tools"))
    chain = chain_hashes("prompt", 8)
    put_chain(client, keyspace, chain, BLOCK_BYTES)
    wait_match(client, keyspace, chain, 8)
    assert client.describe(keyspace, chain[3]).position == 3
    assert client.pin(keyspace, [chain[7]]) == 1
    assert client.unpin(keyspace, [chain[7]]) == 1
    removed = client.remove(keyspace, [chain[5]], force=True)
    assert (removed.count, removed.pending) == (3, [])
    assert client.match(keyspace, chain) == 5
    assert get_chain(client, keyspace, chain[:5], BLOCK_BYTES).tolist() == [Status.OK] * 5
    client.clear(keyspace)
    assert client.match(keyspace, chain) == 0
    assert (get_chain(client, keyspace, chain, BLOCK_BYTES) == Status.MISSING).all()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_full_pool_makes_room(pool: Pool, make_client: MakeClient, transport: str) -> None:
    """Three times what fits: every put succeeds, and what is still there is right."""
    client = make_client(pool, transport=transport)
    block_bytes = 1 << 20
    keyspace = client.register_keyspace(chained(client.settings.transport + "full", block_bytes))
    chains = [chain_hashes(f"prompt {i}", 16) for i in range(18)]
    for chain in chains[:-1]:
        assert all_ok(put_chain(client, keyspace, chain, block_bytes))
    time.sleep(1.5)  # ages compare by seconds: the last chain is to be the youngest
    assert all_ok(put_chain(client, keyspace, chains[-1], block_bytes))
    wait_match(client, keyspace, chains[-1], 16)
    statuses = [get_chain(client, keyspace, chain, block_bytes) for chain in chains]
    assert all_ok(statuses[-1])
    assert (statuses[0] == Status.MISSING).all()


def test_nothing_is_nothing(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained(client.settings.transport + "empty"))
    none = Engine(0, BLOCK_BYTES).fragments
    assert client.match(keyspace, []) == 0
    assert client.renew(keyspace, []) == []
    assert client.put_blocks([]) == []
    assert [len(s) for s in client.put_blocks([BlockPut(keyspace, 0, [], 0, none)])] == [0]
    assert len(client.get_blocks(BlockGet(keyspace, 0, [], 0, none))) == 0


def test_bad_arguments_are_named(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained(client.settings.transport + "bad"))
    chain = chain_hashes("prompt", 4)
    four = Engine(4, BLOCK_BYTES).fragments
    small = Engine(4, BLOCK_BYTES // 2).fragments
    with pytest.raises(InvalidParams, match=r"puts\[0\]\.rank is 3"):
        client.put_blocks([BlockPut(keyspace, 3, chain, 0, four)])
    with pytest.raises(InvalidParams, match=r"get\.first is 1"):
        client.get_blocks(BlockGet(keyspace, 0, chain, 1, four))
    with pytest.raises(InvalidParams, match="65536, as its keyspace says for rank 0"):
        client.get_blocks(BlockGet(keyspace, 0, chain, 0, small))
    with pytest.raises(InvalidParams, match="32 bytes each"):
        client.match(keyspace, [b"short"])
    with pytest.raises(InvalidParams, match="timeout_s"):
        client.match(keyspace, chain, timeout_s=0)
    with pytest.raises(KeyspaceUnknown):
        client.match(bytes(16), chain)


def test_a_put_that_is_too_large_is_told_so(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained(client.settings.transport + "large", 65 << 20))
    statuses = put_chain(client, keyspace, chain_hashes("prompt", 1), 65 << 20)
    assert statuses.tolist() == [Status.TOO_LARGE]
    assert np.array_equal(get_chain(client, keyspace, chain_hashes("prompt", 1), 65 << 20), [Status.MISSING])
