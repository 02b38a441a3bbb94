"""The blocking client: replies, errors, the pool, stale connections, forks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.echo_server import HELLO, KEYSPACE, ThreadedServer
from support.waiting import at_most, soon, wait_until

from moonpool.schemas.errors import (
    Closed,
    DeadlineExceeded,
    InternalError,
    InvalidParams,
    NoSpace,
    RpcFailed,
    TooLarge,
)
from moonpool.schemas.messages import (
    Clear,
    Describe,
    Done,
    Locate,
    Match,
    Matched,
    Message,
    Present,
    Remove,
    Removed,
    Renew,
    Unpin,
    decode_from_master,
)
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.connection_pool import ConnectionPool
from moonpool.store_client.rpc.peer import Limits

MATCH = Match(KEYSPACE, [(5, bytes(32)), (64, bytes(32))])


def pool_of(server: ThreadedServer, size_max: int = 8) -> ConnectionPool:
    return ConnectionPool(server.address, HELLO, decode_from_master, size_max)


def test_a_call_returns_its_reply(server: ThreadedServer) -> None:
    pool = pool_of(server)
    assert pool.welcome is None
    assert pool.call(MATCH, soon()) == Matched([5, 64])
    assert pool.call(Remove(KEYSPACE, b"", wait_ms=10), soon()) == Removed(1, 0, [])
    assert pool.welcome is not None
    assert pool.welcome.epoch == 7
    pool.close()


def test_a_unix_socket_serves_the_same_and_only_its_user(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.write_text("a file that an earlier server left")
    with ThreadedServer(unix_path=str(path)):
        assert path.stat().st_mode & 0o777 == 0o600
        pool = ConnectionPool(f"unix:{path}", HELLO, decode_from_master)
        assert pool.call(MATCH, soon()) == Matched([5, 64])
        pool.close()
    assert not path.exists()


@pytest.mark.parametrize(
    ("request_", "error"), [(Clear(KEYSPACE), NoSpace), (Describe(b"", b""), InternalError)]
)
def test_a_refusal_is_raised_and_the_connection_lives_on(
    server: ThreadedServer, request_: Message, error: type[Exception]
) -> None:
    pool = pool_of(server)
    for _ in range(3):
        with pytest.raises(error):
            pool.call(request_, soon())
    assert pool.call(MATCH, soon()) == Matched([5, 64])
    assert server.handler.connects == 1
    pool.close()


def test_pushes_to_a_blocking_client_are_passed_over(server: ThreadedServer) -> None:
    pool = pool_of(server)
    assert pool.call(Unpin(KEYSPACE, bytes(20)), soon()) == Done()
    assert pool.call(MATCH, soon()) == Matched([5, 64])
    pool.close()


def test_a_large_reply_arrives_whole(server: ThreadedServer) -> None:
    pool = pool_of(server)
    reply = pool.call(Locate(KEYSPACE, rank=5_000_000), soon())
    assert reply == Present(bytes(5_000_000))
    pool.close()


def test_too_large_requests_and_replies_are_told_without_losing_the_connection() -> None:
    with ThreadedServer(Limits(frame_bytes_max=10_000)) as server:
        pool = pool_of(server)
        with pytest.raises(TooLarge, match=r"Renew is .* the limit is 9996 bytes"):
            pool.call(Renew(KEYSPACE, bytes(20_000)), soon())
        with pytest.raises(TooLarge, match="Present is"):
            pool.call(Locate(KEYSPACE, rank=20_000), soon())
        assert pool.call(MATCH, soon()) == Matched([5, 64])
        assert server.handler.connects == 1
        pool.close()


def test_a_resolver_that_hangs_costs_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def hanging(host: str, port: int, *, flags: int, **_: object) -> list[object]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror
        go_on.wait(60)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    pool = ConnectionPool("master.example:1", HELLO, decode_from_master)
    start_s = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        pool.call(MATCH, soon(0.1))
    assert time.monotonic() - start_s < at_most(0.1)
    go_on.set()
    with pytest.raises(RpcFailed, match="Temporary failure in name resolution"):
        pool.call(MATCH, soon())
    for thread in threading.enumerate():
        if thread.name.startswith("resolve"):
            thread.join(60)


def test_threads_share_a_pool_and_never_get_each_others_replies(server: ThreadedServer) -> None:
    pool = pool_of(server, size_max=4)

    def work(worker: int) -> None:
        for i in range(100):
            reply = pool.call(Match(KEYSPACE, [(worker * 1000 + i, b"")]), soon())
            assert reply == Matched([worker * 1000 + i])

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(12)))
    assert server.handler.connects <= 4
    pool.close()


def test_a_full_pool_costs_the_deadline_and_says_so(server: ThreadedServer) -> None:
    pool = pool_of(server, size_max=1)
    stopped: list[type[BaseException]] = []

    def ask() -> None:
        try:
            pool.call(Remove(KEYSPACE, b"", wait_ms=60_000), soon(120))
        except (RpcFailed, Closed) as error:
            stopped.append(type(error))

    busy = threading.Thread(target=ask)
    busy.start()
    wait_until(lambda: server.handler.handled)
    start_s = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="1 calls are waiting"):
        pool.call(MATCH, start_s + 0.1)
    assert 0.09 < time.monotonic() - start_s < at_most(0.1)
    assert not stopped
    pool.close()
    busy.join()
    assert stopped


def test_after_a_timeout_the_late_reply_is_never_taken_for_another(server: ThreadedServer) -> None:
    pool = pool_of(server, size_max=1)
    assert pool.call(MATCH, soon()) == Matched([5, 64])
    with pytest.raises(DeadlineExceeded, match="did not answer Remove within"):
        pool.call(Remove(KEYSPACE, b"", wait_ms=60_000), soon(0.05))
    assert pool.call(MATCH, soon()) == Matched([5, 64])
    assert server.handler.connects == 2
    pool.close()


def test_a_deadline_in_the_past_sends_nothing(server: ThreadedServer) -> None:
    pool = pool_of(server)
    pool.call(MATCH, soon())
    handled = server.handler.handled
    with pytest.raises(DeadlineExceeded):
        pool.call(MATCH, time.monotonic() - 1)
    assert server.handler.handled == handled
    pool.close()


def test_connections_that_a_restart_made_stale_are_replaced_within_the_call() -> None:
    with ThreadedServer() as first:
        pool = pool_of(first)
        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(pool.call, Remove(KEYSPACE, b"", wait_ms=100), soon()) for _ in range(4)]
            assert [call.result() for call in calls] == [Removed(1, 0, [])] * 4
        port = int(first.address.rpartition(":")[2])
    with ThreadedServer(port=port) as second:
        for _ in range(5):
            assert pool.call(MATCH, soon()) == Matched([5, 64])
        assert second.handler.handled == 5
        pool.close()


def test_an_absent_server_is_an_error_at_once() -> None:
    with ThreadedServer() as server:
        pool = pool_of(server)
        pool.call(MATCH, soon())
    for _ in range(2):
        start_s = time.monotonic()
        with pytest.raises(RpcFailed, match="Connection refused"):
            pool.call(MATCH, soon())
        assert time.monotonic() - start_s < at_most(0.1)
    pool.close()


def test_a_server_that_closes_under_a_call_fails_it_soon(server: ThreadedServer) -> None:
    pool = pool_of(server)
    pool.call(MATCH, soon())  # so that it may be taken for a stale connection, and tried once more

    def stop_under_it() -> None:
        wait_until(lambda: server.handler.handled == 2)
        server.stop()

    stopper = threading.Thread(target=stop_under_it)
    stopper.start()
    start_s = time.monotonic()
    with pytest.raises(RpcFailed):
        pool.call(Remove(KEYSPACE, b"", wait_ms=60_000), soon())
    assert time.monotonic() - start_s < 20
    stopper.join()
    assert server.handler.cancelled == 1
    assert server.handler.connects == server.handler.disconnects
    pool.close()


def test_close_ends_calls_under_way_and_later_ones(server: ThreadedServer) -> None:
    pool = pool_of(server)

    def close_under_it() -> None:
        wait_until(lambda: server.handler.handled)
        pool.close()

    closer = threading.Thread(target=close_under_it)
    closer.start()
    with pytest.raises((RpcFailed, Closed)):
        pool.call(Remove(KEYSPACE, b"", wait_ms=60_000), soon(40))
    closer.join()
    with pytest.raises(Closed):
        pool.call(MATCH, soon())
    pool.close()


FORK = """
import os, sys, time
from support.echo_server import HELLO, KEYSPACE
from moonpool.schemas.errors import UsedAfterFork
from moonpool.schemas.messages import GetStatus, decode_from_master
from moonpool.store_client.rpc.connection_pool import ConnectionPool

pool = ConnectionPool(sys.argv[1], HELLO, decode_from_master)
pool.call(GetStatus(), time.monotonic() + 30)
child = os.fork()
if child == 0:
    try:
        pool.call(GetStatus(), time.monotonic() + 30)
    except UsedAfterFork as error:
        pool.close()
        os._exit(0 if "make a new one after a fork" in str(error) else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
pool.call(GetStatus(), time.monotonic() + 30)
pool.close()
"""


def test_after_a_fork_the_child_is_told_and_the_parent_keeps_its_connection(server: ThreadedServer) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", FORK, server.address], check=True, timeout=120, env=environment)
    assert server.handler.connects == 1


def test_a_hello_of_another_version_is_refused(server: ThreadedServer) -> None:
    connection = RpcConnection(
        server.address, type(HELLO)(protocol=99, role="client", client="t"), decode_from_master
    )
    with pytest.raises(Exception, match="version 99 was offered, this side speaks 1"):
        connection.call(MATCH, soon())
    assert not connection.is_open


def test_connections_over_the_limit_are_refused_clearly_and_served_again_later() -> None:
    with ThreadedServer(replace(Limits(), connections_max=2)) as server:
        connections = [RpcConnection(server.address, HELLO, decode_from_master) for _ in range(3)]
        for connection in connections[:2]:
            connection.call(MATCH, soon())
        with pytest.raises(Exception, match="connection table of echo is full"):
            connections[2].call(MATCH, soon())
        connections[0].close()
        wait_until(lambda: server.connections < 2)
        assert connections[2].call(MATCH, soon()) == Matched([5, 64])
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:0", "host:70000", "host:x", "unix:", "unix:" + "x" * 200]
)
def test_addresses_that_cannot_be_are_told_at_once(address: str) -> None:
    with pytest.raises(InvalidParams):
        ConnectionPool(address, HELLO, decode_from_master)
