"""One client in a process with other threads, forks and a long life."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from client.chains import Engine, all_ok, chained, get_chain, put_chain
from client.pool import MakeClient, Pool, client_of, wait_for_nodes
from support.payloads import chain_hashes
from support.processes import MasterProcess, ServerProcess
from support.waiting import at_most, soon, wait_until

from moonpool.schemas.errors import Closed, UsedAfterFork
from moonpool.schemas.messages import SMALL_BYTES, Status
from moonpool.store_client import BlockGet, BlockPut, StoreClient

BLOCK_BYTES = 64 << 10

both = pytest.mark.parametrize("transport", ["shm", "tcp"])


def test_sixteen_threads_share_a_client(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained(f"threads {client.settings.transport}"))

    def work(i: int) -> None:
        for k in range(4):
            chain = chain_hashes(f"{client.settings.transport} {i} {k}", 8)
            assert all_ok(put_chain(client, keyspace, chain, BLOCK_BYTES, fragments=4))
            wait_until(lambda chain=chain: client.match(keyspace, chain) == 8)
            assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES, fragments=4))
            key = f"{client.settings.transport} {i} {k}"
            assert client.put(key, key.encode()) == Status.OK
            assert client.get(key) == key.encode()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))


def test_writers_of_the_same_blocks_don_t_collide(client: StoreClient) -> None:
    keyspace = client.register_keyspace(chained(f"same {client.settings.transport}"))
    chain = chain_hashes(f"same {client.settings.transport}", 40)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: put_chain(client, keyspace, chain, BLOCK_BYTES), range(8)))
    for statuses in results:
        assert set(statuses.tolist()) <= {Status.OK, Status.EXISTS, Status.BUSY}
    assert (sum((statuses == Status.OK).astype(int) for statuses in results) >= 1).all()
    wait_until(lambda: client.match(keyspace, chain) == 40)
    assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES))


@both
def test_closed_clients_say_so(shared_pool: Pool, make_client: MakeClient, transport: str) -> None:
    client = make_client(shared_pool, transport=transport)
    client.put(f"closed {transport}", b"value")
    client.close()
    client.close()
    with pytest.raises(Closed, match="StoreClient is closed"):
        client.get("object")
    with pytest.raises(Closed):
        client.put_blocks([])


@both
def test_close_ends_calls_under_way(pool: Pool, make_client: MakeClient, transport: str) -> None:
    client = make_client(pool, transport=transport, timeout_s=60)
    keyspace = client.register_keyspace(chained("a"))
    put_chain(client, keyspace, chain_hashes("warm", 3), BLOCK_BYTES)
    pool.node.freeze()
    outcome: list[object] = []
    engine = Engine(3, BLOCK_BYTES)
    put = BlockPut(keyspace, 0, chain_hashes("frozen", 3), 0, engine.fragments)

    def ask() -> None:
        try:
            outcome.append(set(client.put_blocks([put])[0].tolist()))
        except Closed as error:  # it came only now
            outcome.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    start_s = time.monotonic()
    client.close()
    thread.join()
    assert time.monotonic() - start_s < at_most(1)
    assert outcome == [{Status.FAILED}] or isinstance(outcome[0], Closed)
    pool.node.thaw()


def test_a_call_that_is_under_way_at_the_close_connects_to_nobody(
    shared_pool: Pool, make_client: MakeClient
) -> None:
    client = make_client(shared_pool)
    assert client.prepare() == 1
    client._nodes.close()
    assert client._nodes.prepare(soon()) == 0


@both
def test_a_forked_child_can_t_use_it(shared_pool: Pool, make_client: MakeClient, transport: str) -> None:
    client = make_client(shared_pool, transport=transport)
    client.put(f"fork {transport}", b"value")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            client.get("x")
        except UsedAfterFork:
            client.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert client.get(f"fork {transport}") == b"value"


def test_a_forked_child_doesn_t_hold_the_session_lock(shared_pool: Pool, make_client: MakeClient) -> None:
    others = _open_files()  # numbers alone won't do: the listing's own is free again
    client = make_client(shared_pool, transport="shm")
    client.put("lock", bytes(SMALL_BYTES + 1))  # smaller ones go to the node and need no session
    locks = [link for link, target in _open_files() - others if target.endswith(".lock")]
    assert locks
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        held = [path for path in map(_target, locks) if path.endswith(".lock")]
        os.write(write, str(len(held)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"0"
    os.close(read)
    os.close(write)


def _open_files() -> set[tuple[str, str]]:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return {(link, _target(link)) for link in links}


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


@both
def test_nothing_leaks(shared_pool: Pool, tmp_path: object, transport: str) -> None:
    def once(i: int) -> None:
        with client_of(shared_pool, transport=transport, run_dir=str(tmp_path)) as client:
            client.put(f"leak {transport} {i}", bytes(5000))
            assert client.get(f"leak {transport} {i}") == bytes(5000)

    def held() -> tuple[int, int, int]:
        with open("/proc/self/maps") as maps:
            return (
                len(os.listdir("/proc/self/fd")),
                threading.active_count(),
                sum(".segment" in m for m in maps),
            )

    once(0)
    before = held()
    for i in range(1, 6):
        once(i)
    assert all(now <= then for now, then in zip(held(), before, strict=True))


@both
@pytest.mark.parametrize("fragments", [1, 64])
def test_other_threads_run_during_a_transfer(
    pool: Pool, make_client: MakeClient, transport: str, fragments: int
) -> None:
    """Another Python thread ticks on during put and get of 1 GiB (64 MiB, sixteen times)."""
    client = make_client(pool, transport=transport, verify_checksums=True)
    block_bytes = 1 << 20
    keyspace = client.register_keyspace(chained("a", block_bytes))
    chain = chain_hashes("prompt", 64)
    engine = Engine(64, block_bytes, fragments)
    engine.fill(chain, 0)
    client.put_blocks([BlockPut(keyspace, 0, chain, 0, engine.fragments)], timeout_s=60)
    wait_until(lambda: client.match(keyspace, chain) == 64)
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.0002)  # 64 MiB may take no more than 5 ms

    ticker = threading.Thread(target=tick)
    ticker.start()
    start_s = time.monotonic()
    try:
        for _ in range(16):
            get = BlockGet(keyspace, 0, chain, 0, engine.fragments)
            assert all_ok(client.get_blocks(get, timeout_s=60))
    finally:
        took_s = time.monotonic() - start_s
        stop.set()
        ticker.join()
    print(f"{transport} {fragments} pieces: {took_s:.2f} s a GiB", file=sys.stderr)
    inside = [at for at in ticks if start_s <= at <= start_s + took_s]
    # Without the lock let go, it would tick between two parts of 64 MiB only.
    assert len(inside) > 16 * 5


def test_a_client_with_a_segment_of_its_own(make_client: MakeClient, tmp_path: object) -> None:
    with MasterProcess() as master:
        bare = type("Bare", (), {"master": master})()
        other = make_client(bare, transport="tcp")
        client = make_client(bare, segment_size="64MB")
        wait_for_nodes(other)
        assert client.put("object", b"value") == Status.OK
        assert other.get("object") == b"value"
        info = client.cluster_map().nodes[0].info
        assert os.path.exists(info.segment_path)
        client.close()
        assert not os.path.exists(info.segment_path)


def test_the_own_segment_dies_with_its_process(make_client: MakeClient, tmp_path: object) -> None:
    code = f"""
import os, sys, time
from moonpool.store_client import ClientSettings, StoreClient
settings = ClientSettings(master=sys.argv[1], segment_size="32MB", run_dir={str(tmp_path)!r})
client = StoreClient(settings)
print("listening on", os.getpid(), flush=True)
time.sleep(600)
"""
    with MasterProcess() as master, ServerProcess(["-c", code, master.address]) as owner:
        other = make_client(type("Bare", (), {"master": master})())
        wait_for_nodes(other)
        info = other.cluster_map().nodes[0].info
        owner.kill()
        wait_until(lambda: not os.path.exists(info.segment_path))
