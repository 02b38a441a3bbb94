"""What a client tells of its transfers and of peers that failed."""

from __future__ import annotations

import pytest
from client.chains import all_ok, chained, get_chain, put_chain
from client.test_blocks import wait_match
from support.payloads import chain_hashes
from support.processes import MasterProcess

from moonpool.connector.client_stats import ClientStats
from moonpool.connector.fake_pool import FakePool
from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import Unreachable
from moonpool.store_client import StoreClient
from moonpool.store_client.telemetry import TIMES_MAX, TransferCounts

BLOCK_BYTES = 64 << 10


def test_transfers_are_counted_by_transport(client: StoreClient) -> None:
    transport = client.settings.transport
    keyspace = client.register_keyspace(chained(f"{transport} telemetry"))
    chain = chain_hashes("prompt", 20)
    client.take_telemetry()
    assert all_ok(put_chain(client, keyspace, chain, BLOCK_BYTES))
    wait_match(client, keyspace, chain, 20)
    assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES))
    found = client.take_telemetry()
    assert found.open_breakers == {"master": 0, "node": 0}
    assert set(found.transfers) == {(transport, "save"), (transport, "load")}
    for moved in found.transfers.values():
        assert moved.size_bytes == 20 * BLOCK_BYTES and moved.failures == 0
        assert moved.seconds and all(0 < one < 60 for one in moved.seconds)
    assert client.take_telemetry().transfers == {}


def test_a_master_that_is_away_is_told() -> None:
    with MasterProcess() as master:
        address = master.address
    with StoreClient(ClientSettings(master=address, timeout_s=20)) as client:
        assert client.take_telemetry().open_breakers["master"] == 0
        with pytest.raises(Unreachable):
            client.status(timeout_s=5)
        assert client.take_telemetry().open_breakers["master"] == 1


def test_times_are_bounded() -> None:
    counts = TransferCounts()
    for _ in range(TIMES_MAX + 10):
        counts.add(("shm", "load"), 1.0, 5)
    counts.failed(("tcp", "save"))
    found = counts.take()
    assert len(found["shm", "load"].seconds) == TIMES_MAX
    assert found["shm", "load"].size_bytes == 5 * (TIMES_MAX + 10)
    assert found["tcp", "save"].failures == 1


def test_a_gauge_is_told_until_it_is_0_again() -> None:
    pool = FakePool()
    stats = ClientStats(pool, "worker")
    told = []
    for pool.away in (False, True, True, False, False):
        told.append(stats.take().get("open_breakers/worker/master"))
    assert told == [None, 1, 1, 0, None]
