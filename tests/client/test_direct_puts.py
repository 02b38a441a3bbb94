"""Puts that ask no master: what others do meanwhile holds for them all the same."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.processes import MasterProcess, NodeProcess
from support.waiting import soon, wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.messages import Done, Drain, ListTenants, SetTenant, Status, Tenants
from moonpool.store_client import StoreClient
from moonpool.store_client.permits import DIRECT_MS_MAX, Permits, Rows

SIZES = [100, 300_000]
"""Sent to the node, and copied into its segment."""


class HostPool:
    """A master and a node whose segment lies where clients look for segments of their host."""

    def __init__(self, stack: ExitStack) -> None:
        self.master = stack.enter_context(MasterProcess(["--store", "memory"]))
        self._segments: list[Path] = []
        stack.callback(self._remove_segments)
        settings: dict[str, Any] = {
            "name": f"direct-{secrets.token_hex(4)}",
            "size": 64 << 20,
            "prefault": False,
            "begin_wait_s": 5,
            "segment_dir": "/dev/shm",
        }
        self.node = stack.enter_context(NodeProcess(self.master, **settings))
        self._segments.append(Path(self.node.info.segment_path))  # a later start adopts it
        self._stack = stack
        wait_until(lambda: any(entry.state == 1 for entry in self.client().cluster_map().nodes))

    def _remove_segments(self) -> None:
        for path in self._segments:
            path.unlink(missing_ok=True)

    def client(self, **settings: object) -> StoreClient:
        given = {"master": self.master.address, "run_dir": self.node.run_dir, "timeout_s": 20.0, **settings}
        return self._stack.enter_context(StoreClient(ClientSettings.model_validate(given)))


@pytest.fixture(scope="module")
def shared() -> Iterator[HostPool]:
    with ExitStack() as stack:
        yield HostPool(stack)


@pytest.fixture
def own() -> Iterator[HostPool]:
    with ExitStack() as stack:
        yield HostPool(stack)


def asked(client: StoreClient) -> int:
    """How many blocks masters were asked for."""
    facts = client.status()
    return sum(int(facts.get(f"put_{answer}", 0)) for answer in ("go", "exists", "busy", "no_node", "quota"))


def stored(client: StoreClient) -> int:
    """Bytes of its tenant."""
    tenants = client._cluster.ask(ListTenants(), Tenants, soon()).tenants
    return sum(one.used_bytes for one in tenants if one.tenant == "default")


def put_directly(client: StoreClient, size_bytes: int = 100) -> str:
    """Puts new objects until one was put without asking; its key."""
    end_s = soon(60)
    while time.monotonic() < end_s:
        key, before = secrets.token_hex(8), asked(client)
        assert client.put(key, secrets.token_bytes(size_bytes)) == Status.OK
        if asked(client) == before:
            return key
    raise AssertionError("the master was asked for each")


@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_is_there_is_not_written_again(shared: HostPool, size_bytes: int) -> None:
    mine, others = shared.client(), shared.client()
    for _ in range(10):
        key = put_directly(mine, size_bytes)
        value = mine.get(key)
        assert value is not None and len(value) == size_bytes
        put_directly(others, size_bytes)
        assert others.put(key, b"another") == Status.EXISTS
        put_directly(mine, size_bytes)
        assert mine.batch_put([key, key + "+"], [b"another", b"new"]) == [Status.EXISTS, Status.OK]
        assert others.get(key) == value and others.get(key + "+") == b"new"
    wait_until(lambda: shared.node.status()["objects"] == mine.status()["rows"])


def test_a_key_twice_in_a_batch(shared: HostPool) -> None:
    client = shared.client()
    key = put_directly(client) + "-twice"
    assert client.batch_put([key, key], [b"first", b"second"]) == [Status.OK, Status.BUSY]
    assert client.get(key) == b"first"


@pytest.mark.parametrize("size_bytes", SIZES)
def test_over_tcp(shared: HostPool, size_bytes: int) -> None:
    mine, others = shared.client(transport="tcp"), shared.client()
    another, new = bytes(size_bytes), secrets.token_bytes(size_bytes)
    for _ in range(5):
        key = put_directly(mine, size_bytes)
        assert others.put(key, another) == Status.EXISTS
        there = put_directly(others, size_bytes)
        put_directly(mine, size_bytes)
        assert mine.batch_put([there, there + "+"], [another, new]) == [Status.EXISTS, Status.OK]
        assert others.get(there + "+") == new
    wait_until(lambda: shared.node.status()["objects"] == mine.status()["rows"])


@pytest.mark.parametrize("size_bytes", SIZES)
def test_removed_and_put_again(shared: HostPool, size_bytes: int) -> None:
    client, others = shared.client(), shared.client()
    for _ in range(20):
        key = put_directly(client, size_bytes)
        assert others.batch_remove([key], force=True).count == 1
        assert client.get(key) is None
        value = secrets.token_bytes(size_bytes)
        assert client.put(key, value) == Status.OK
        assert others.get(key) == value


def test_two_that_put_the_same_at_the_same_moment(shared: HostPool) -> None:
    clients = [shared.client() for _ in range(2)]
    for number in range(40):
        for client in clients:
            put_directly(client)
        key, outcomes = f"race {number} {secrets.token_hex(4)}", dict[int, Status]()
        barrier = threading.Barrier(2)

        threads = [
            threading.Thread(target=put_at_once, args=(barrier, clients, which, key, outcomes))
            for which in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [which for which, status in outcomes.items() if status == Status.OK]
        assert len(winners) == 1 and set(outcomes.values()) <= {Status.OK, Status.EXISTS, Status.BUSY}
        assert {client.get(key) for client in clients} == {bytes(winners) * 50}


def put_at_once(
    barrier: threading.Barrier, clients: list[StoreClient], which: int, key: str, outcomes: dict[int, Status]
) -> None:
    barrier.wait()
    outcomes[which] = clients[which].put(key, bytes([which]) * 50)


def test_a_drained_node_gets_no_more_after_a_moment(own: HostPool) -> None:
    client = own.client()
    put_directly(client)
    assert client._cluster.ask(Drain(own.node.info.node), Done, soon()).count == 1
    wait_until(lambda: client.put(secrets.token_hex(8), b"value") == Status.NO_SPACE)
    before = own.node.status()["blocks_committed"]
    for _ in range(20):
        assert client.put(secrets.token_hex(8), b"value") == Status.NO_SPACE
    assert own.node.status()["blocks_committed"] == before


def test_a_tenant_that_gets_a_quota_keeps_it(own: HostPool) -> None:
    client = own.client()
    put_directly(client)
    client._cluster.ask(SetTenant("default", 1 << 20), Done, soon())
    asked_before = asked(client)
    wait_until(
        lambda: client.put(secrets.token_hex(8), b"value") == Status.OK and asked(client) > asked_before
    )
    for _ in range(40):
        before = asked(client)
        assert client.put(secrets.token_hex(8), bytes(60_000)) == Status.OK
        assert asked(client) == before + 1
    wait_until(lambda: stored(client) <= 1 << 20)


@pytest.mark.parametrize("server", ["master", "node"])
def test_a_server_that_starts_again(own: HostPool, server: str) -> None:
    """Nothing is said to be there that isn't."""
    client = own.client(breaker_retry_s=0.1)
    keys = [put_directly(client)]
    getattr(own, server).kill()
    getattr(own, server).start()
    stored: dict[str, bytes] = {}

    def put_and_see() -> bool:
        key = secrets.token_hex(8)
        status = client.put(key, key.encode(), timeout_s=20.0)
        if status == Status.OK:
            stored[key] = key.encode()
        return status == Status.OK

    wait_until(put_and_see)
    keys.append(put_directly(client))
    assert all(client.batch_is_exist(keys))
    assert client.batch_get(list(stored)) == list(stored.values())


def test_permits_end_and_are_bounded() -> None:
    permits, rows = Permits(), Rows(b"k" * 16, 0, 3)
    assert permits.segment(rows, 9, 10.0) is None
    permits.give(rows, b"s", 10.0, 1000)
    assert permits.segment(rows, 9, 10.999) == b"s"
    assert permits.segment(rows, 9, 11.0) is None
    assert permits.segment(rows._replace(shard=4), 9, 10.5) is None
    permits.give(rows, b"s", 10.0, 1 << 40)
    assert permits.segment(rows, 9, 10.0 + DIRECT_MS_MAX / 1000) is None
    permits.give(rows, b"s", 10.0, 1000, 8)
    assert permits.segment(rows, 8, 10.5) == b"s" and permits.segment(rows, 9, 10.5) is None
    permits.take(rows)
    permits.take(rows)
    assert permits.segment(rows, 9, 10.0) is None
