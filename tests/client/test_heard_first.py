"""Puts on the master's own host: done once the node has reported them, and seen by whoever asks after that."""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from client.test_direct_puts import SIZES, HostPool, put_directly
from support.processes import NodeProcess
from support.waiting import wait_until

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.messages import Status
from moonpool.store_client import StoreClient

READERS = 2
ROUNDS = 400


@pytest.fixture
def pool() -> Iterator[HostPool]:
    with ExitStack() as stack:
        pool = HostPool(stack)
        wait_until(lambda: hears_first(pool))
        yield pool


def hears_first(pool: HostPool) -> bool:
    """Whether the node was told that it need not wait."""
    return pool.node.status()["master_hears_first"] == 1


@contextmanager
def frozen(server: Any) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


def put_while_frozen(pool: HostPool, client: StoreClient, value: bytes) -> tuple[str, Status]:
    """A put that no master can have answered, begun while the permit holds: its key, and what came of it."""
    put_directly(client, len(value))
    key = secrets.token_hex(8)
    with frozen(pool.master):
        try:
            return key, client.put(key, value, timeout_s=1.0)
        except MoonpoolError:
            return key, Status.FAILED


def put_at_once(pool: HostPool, client: StoreClient, size_bytes: int = 100) -> str:
    """The key of such a put that was done all the same: the freeze may take longer than the permit holds."""
    for _ in range(20):
        key, status = put_while_frozen(pool, client, bytes(size_bytes))
        if status == Status.OK:
            return key
    raise AssertionError("the master was waited for each time")


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_put_waits_for_no_master(pool: HostPool, size_bytes: int, transport: str) -> None:
    writer, reader = pool.client(transport=transport), pool.client()
    key = put_at_once(pool, writer, size_bytes)
    assert reader.batch_is_exist([key]) == [True]
    assert reader.get(key) == bytes(size_bytes)
    assert writer.put(key, b"another") == Status.EXISTS
    assert reader.batch_remove([key], force=True).count == 1
    assert reader.get(key) is None
    wait_until(lambda: pool.node.status()["objects"] == reader.status()["rows"])


def test_what_the_node_holds_already_is_the_masters_to_say(pool: HostPool) -> None:
    client = pool.client()
    key = put_at_once(pool, client)
    put_directly(client)
    assert client.put(key, b"another") == Status.EXISTS
    pool.node.kill()
    pool.node.start()
    wait_until(lambda: client.get(key) is not None)
    put_at_once(pool, client)
    assert client.put(key, b"another") == Status.EXISTS, "it knows what it has adopted"
    assert client.get(key) == bytes(100)


def test_whoever_hears_of_a_put_finds_it(pool: HostPool) -> None:
    """Many times: a reader asks as soon as it can after the put was done."""
    writer, others = pool.client(), [pool.client() for _ in range(READERS)]
    told: list[queue.SimpleQueue[str]] = [queue.SimpleQueue() for _ in others]
    missed: list[str] = []

    def read(client: StoreClient, keys: queue.SimpleQueue[str]) -> None:
        while key := keys.get():
            found = client.batch_is_exist([key]) == [True] and client.get(key) == key.encode()
            if not found:
                missed.append(key)

    threads = [threading.Thread(target=read, args=pair) for pair in zip(others, told, strict=True)]
    for thread in threads:
        thread.start()
    try:
        for number in range(ROUNDS):
            key = f"{number}"
            assert writer.put(key, key.encode()) == Status.OK
            for keys in told:
                keys.put(key)
    finally:
        for keys in told:
            keys.put("")
        for thread in threads:
            thread.join()
    assert missed == []


def test_beside_another_node_the_master_is_waited_for(pool: HostPool, tmp_path: Path) -> None:
    client = pool.client()
    put_at_once(pool, client)
    settings: dict[str, Any] = {"size": 64 << 20, "prefault": False, "segment_dir": str(tmp_path)}
    with NodeProcess(pool.master, name=f"other-{secrets.token_hex(4)}", **settings):
        wait_until(lambda: sum(entry.state == 1 for entry in client.cluster_map().nodes) == 2)
        assert not hears_first(pool)
        for _ in range(2):
            assert put_while_frozen(pool, client, b"value")[1] != Status.OK
            wait_until(lambda: answers(client))


def answers(client: StoreClient) -> bool:
    """Whether the master does, again."""
    try:
        return client.put(secrets.token_hex(8), b"value") == Status.OK and bool(client.status())
    except MoonpoolError:
        return False


def test_a_master_that_starts_again_knows_what_it_was_told(pool: HostPool) -> None:
    client, stored = pool.client(), []
    for _ in range(20):
        put_directly(client)
        key = secrets.token_hex(8)
        pool.master.freeze()
        if client.put(key, key.encode(), timeout_s=1.0) == Status.OK:
            stored.append(key)
            break
        pool.master.thaw()
        wait_until(lambda: answers(client))
    pool.master.kill()
    pool.master.start()
    assert stored
    wait_until(lambda: client.get(stored[0]) == stored[0].encode())
