"""Servers that die, freeze and come back under one client object that goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from client.chains import Engine, all_ok, chained, get_chain, put_chain
from client.pool import MakeClient, Pool
from support.mapped_bytes import mapped_bytes
from support.payloads import chain_hashes
from support.waiting import at_most, wait_until

from moonpool.schemas.errors import DeadlineExceeded, TransferFailed, Unavailable, Unreachable
from moonpool.schemas.messages import Status
from moonpool.store_client import BlockGet, BlockPut, ClientSettings, StoreClient
from moonpool.store_client.transports.mapped import MappedSegment

BLOCK_BYTES = 64 << 10
CHAIN = chain_hashes("prompt", 80)

FROZEN_S = 2.5
"""Deadline of calls that a frozen server lets wait: longer than a pause of ours."""
RETRY_S = 5.0
"""Until a circuit breaker asks again: longer than what is to be answered by it takes."""

both = pytest.mark.parametrize("transport", ["shm", "tcp"])


def matched(client: StoreClient, keyspace: bytes, chain: list[bytes]) -> int:
    """As match, 0 while the master is away."""
    try:
        return client.match(keyspace, chain)
    except Unreachable:
        return 0


def put_until_ok(client: StoreClient, keyspace: bytes, chain: list[bytes]) -> None:
    """Puts go through again at some time soon."""

    def there() -> bool:
        statuses = put_chain(client, keyspace, chain, BLOCK_BYTES)
        return bool(((statuses == Status.OK) | (statuses == Status.EXISTS)).all())

    wait_until(there)


@both
def test_a_master_that_lost_everything(pool: Pool, make_client: MakeClient, transport: str) -> None:
    client = make_client(pool, transport=transport, breaker_retry_s=0.1)
    keyspace = client.register_keyspace(chained("a"))
    assert client.put("object", b"value") == Status.OK
    put_chain(client, keyspace, CHAIN, BLOCK_BYTES)
    wait_until(lambda: client.match(keyspace, CHAIN) == 80)
    pool.master.kill()
    with pytest.raises(Unreachable):
        client.match(keyspace, CHAIN)
    assert (get_chain(client, keyspace, CHAIN, BLOCK_BYTES) == Status.FAILED).all()
    assert client.get("object") is None
    pool.master.start()
    start_s = time.monotonic()
    wait_until(lambda: matched(client, keyspace, CHAIN) == 80)
    assert time.monotonic() - start_s < at_most(5)
    assert all_ok(get_chain(client, keyspace, CHAIN, BLOCK_BYTES))
    assert client.get("object") == b"value"
    put_until_ok(client, keyspace, chain_hashes("another", 70))


@both
def test_a_node_that_comes_back(pool: Pool, make_client: MakeClient, transport: str) -> None:
    client = make_client(pool, transport=transport, breaker_retry_s=0.1)
    keyspace = client.register_keyspace(chained("a"))
    put_chain(client, keyspace, CHAIN, BLOCK_BYTES)
    wait_until(lambda: client.match(keyspace, CHAIN) == 80)
    segment = pool.node.info.segment
    pool.node.kill()
    get_chain(client, keyspace, CHAIN, BLOCK_BYTES)  # whatever it says, nothing is wrong
    put_chain(client, keyspace, chain_hashes("lost", 5), BLOCK_BYTES)
    pool.node.start()
    assert pool.node.info.segment == segment  # adopted
    wait_until(lambda: client.match(keyspace, CHAIN) == 80)
    wait_until(lambda: all_ok(get_chain(client, keyspace, CHAIN, BLOCK_BYTES)))
    put_until_ok(client, keyspace, chain_hashes("another", 70))
    assert client.put("object", b"value") == Status.OK
    assert client.get("object") == b"value"


def test_a_lock_file_that_was_tidied_away(pool: Pool, make_client: MakeClient) -> None:
    client = make_client(pool, transport="shm", breaker_retry_s=0.1)
    keyspace = client.register_keyspace(chained("a"))
    assert all_ok(put_chain(client, keyspace, CHAIN, BLOCK_BYTES))
    (lock,) = Path(client.settings.run_dir).glob("*/sessions/*.lock")
    # Behind the same doors, so that the client keeps its session.
    info = pool.node.info
    for name, address in (("port", info.rpc_address), ("data_port", info.data_address)):
        pool.node._settings[name] = int(address.rpartition(":")[2])
    pool.node.kill()
    lock.unlink()
    pool.node.start()
    assert pool.node.info == info
    put_until_ok(client, keyspace, chain_hashes("another", 70))


@both
def test_a_node_with_a_new_segment(pool: Pool, make_client: MakeClient, transport: str) -> None:
    client = make_client(pool, transport=transport, breaker_retry_s=0.1)
    keyspace = client.register_keyspace(chained("a"))
    put_chain(client, keyspace, CHAIN, BLOCK_BYTES)
    before = pool.node.info
    pool.node.kill()
    os.unlink(before.segment_path)
    pool.node.start()
    assert pool.node.info.segment != before.segment
    put_until_ok(client, keyspace, chain_hashes("another", 70))
    wait_until(lambda: client.match(keyspace, chain_hashes("another", 70)) == 70)
    assert all_ok(get_chain(client, keyspace, chain_hashes("another", 70), BLOCK_BYTES))


def test_a_frozen_master_costs_one_deadline(pool: Pool, make_client: MakeClient) -> None:
    client = make_client(pool, breaker_retry_s=RETRY_S)
    keyspace = client.register_keyspace(chained("a"))
    pool.master.freeze()
    start_s = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        client.match(keyspace, CHAIN, timeout_s=0.3)
    assert 0.25 < time.monotonic() - start_s < at_most(0.3)
    start_s = time.monotonic()
    for _ in range(20):
        with pytest.raises(Unavailable):
            client.match(keyspace, CHAIN)
        statuses = client.get_blocks(BlockGet(keyspace, 0, CHAIN, 0, Engine(80, BLOCK_BYTES).fragments))
        assert (statuses == Status.FAILED).all()
    assert time.monotonic() - start_s < RETRY_S, "none of them waited"
    pool.master.thaw()
    wait_until(lambda: matched(client, keyspace, CHAIN) == 0)
    put_until_ok(client, keyspace, CHAIN)


def test_a_frozen_node_is_still_read_over_shm(pool: Pool, make_client: MakeClient) -> None:
    client = make_client(pool, transport="shm", breaker_retry_s=60)
    keyspace = client.register_keyspace(chained("a"))
    put_chain(client, keyspace, CHAIN, BLOCK_BYTES)
    wait_until(lambda: client.match(keyspace, CHAIN) == 80)
    pool.node.freeze()
    assert all_ok(get_chain(client, keyspace, CHAIN, BLOCK_BYTES))
    engine = Engine(5, BLOCK_BYTES)

    def put(name: str) -> float:
        start_s = time.monotonic()
        chain = chain_hashes(name, 5)
        statuses = client.put_blocks([BlockPut(keyspace, 0, chain, 0, engine.fragments)], timeout_s=FROZEN_S)[
            0
        ]
        assert (statuses == Status.FAILED).all()
        return time.monotonic() - start_s

    assert FROZEN_S - 0.1 < put("first") < at_most(FROZEN_S)  # one deadline
    assert put("second") < FROZEN_S - 0.5
    pool.node.thaw()


def test_a_frozen_node_costs_one_deadline_over_tcp(pool: Pool, make_client: MakeClient) -> None:
    client = make_client(pool, transport="tcp", breaker_retry_s=RETRY_S)
    keyspace = client.register_keyspace(chained("a"))
    put_chain(client, keyspace, CHAIN, BLOCK_BYTES)
    wait_until(lambda: client.match(keyspace, CHAIN) == 80)
    pool.node.freeze()
    into = Engine(80, BLOCK_BYTES)
    times_s = []
    for _ in range(2):
        start_s = time.monotonic()
        statuses = client.get_blocks(BlockGet(keyspace, 0, CHAIN, 0, into.fragments), timeout_s=FROZEN_S)
        assert not (statuses == Status.OK).any()
        times_s.append(time.monotonic() - start_s)
    assert FROZEN_S - 0.1 < times_s[0] < at_most(FROZEN_S)
    assert times_s[1] < FROZEN_S - 0.5
    before = [layer.copy() for layer in into.layers]
    pool.node.thaw()
    time.sleep(0.3)
    for layer, was in zip(into.layers, before, strict=True):
        assert np.array_equal(layer, was)  # nothing lands late
    wait_until(lambda: all_ok(get_chain(client, keyspace, CHAIN, BLOCK_BYTES)))


def test_without_a_master_everything_misses() -> None:
    with StoreClient(ClientSettings(master="127.0.0.1:1", timeout_s=0.5)) as client:
        with pytest.raises(Unreachable):
            client.register_keyspace(chained("a"))
        keyspace = chained("a").digest()
        assert client.put("object", b"value") == Status.FAILED
        assert client.get("object") is None
        assert (put_chain(client, keyspace, CHAIN, BLOCK_BYTES) == Status.FAILED).all()
        assert (get_chain(client, keyspace, CHAIN, BLOCK_BYTES) == Status.FAILED).all()
        with pytest.raises(Unavailable):
            client.match(keyspace, CHAIN)


@both
def test_flipped_bits_are_found_and_reported(pool: Pool, make_client: MakeClient, transport: str) -> None:
    client = make_client(pool, transport=transport)
    keyspace = client.register_keyspace(chained("a"))
    put_chain(client, keyspace, CHAIN, BLOCK_BYTES)
    wait_until(lambda: client.match(keyspace, CHAIN) == 80)
    place = client.describe(keyspace, CHAIN[30]).copies[0]
    segment = MappedSegment(pool.node.info.segment_path, place.segment)
    slot = np.array([place.slot], dtype=np.uint32)
    wait_until(lambda: segment.headers(slot)["checksum"][0] != 0)
    start, inside = segment.places(slot, np.array([BLOCK_BYTES], dtype=np.uint64))
    assert inside.all()
    mapped_bytes(segment, int(start[0]), BLOCK_BYTES)[100] ^= 0xFF
    statuses = get_chain(client, keyspace, CHAIN, BLOCK_BYTES)
    segment.close()
    assert statuses[30] == Status.CORRUPT
    assert all_ok(np.delete(statuses, 30))
    wait_until(lambda: client.match(keyspace, CHAIN) == 30)
    put_until_ok(client, keyspace, CHAIN)
    wait_until(lambda: client.match(keyspace, CHAIN) == 80)
    assert all_ok(get_chain(client, keyspace, CHAIN, BLOCK_BYTES))


def test_shm_falls_back_to_tcp(pool: Pool, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that says it is of this host, but whose segment can't be opened here."""

    def fail(path: str, segment: bytes) -> MappedSegment:
        raise TransferFailed(peer=path, reason="cannot open the segment")

    monkeypatch.setattr("moonpool.store_client.transports.shm.MappedSegment", fail)
    client = make_client(pool)
    assert client.put("object", b"value") == Status.OK
    assert client.get("object") == b"value"
