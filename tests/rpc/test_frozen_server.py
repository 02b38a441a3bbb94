"""A server that is stopped (SIGSTOP), killed, or started again: what that costs its clients."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from support.echo_server import ECHO_SERVER, HELLO, KEYSPACE
from support.ports import free_ports
from support.processes import ServerProcess
from support.waiting import at_most, soon, wait_until

from moonpool.schemas.errors import DeadlineExceeded, RpcFailed
from moonpool.schemas.messages import Match, Matched, Message, Remove, Renew, decode_from_master
from moonpool.store_client.rpc.connection_pool import ConnectionPool

MATCH = Match(KEYSPACE, [(5, bytes(32))])


class EchoProcess(ServerProcess):
    """The echo server, on the same port after a restart."""

    def __init__(self) -> None:
        super().__init__([ECHO_SERVER, *map(str, free_ports(1))])


@pytest.fixture
def process() -> Iterator[EchoProcess]:
    with EchoProcess() as running:
        yield running


@pytest.fixture
def pool(process: EchoProcess) -> Iterator[ConnectionPool]:
    pool = ConnectionPool(process.address, HELLO, decode_from_master)
    yield pool
    pool.close()


def timed(pool: ConnectionPool, message: Message, timeout_s: float) -> tuple[object, float]:
    start_s = time.monotonic()
    try:
        result: object = pool.call(message, start_s + timeout_s)
    except (DeadlineExceeded, RpcFailed) as error:
        result = type(error)
    return result, time.monotonic() - start_s


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("warm", [True, False], ids=["pooled connection", "new connection"])
@pytest.mark.parametrize("message", [MATCH, Renew(KEYSPACE, bytes(12 << 20))], ids=["small", "large"])
def test_a_frozen_server_costs_exactly_one_deadline(
    process: EchoProcess, pool: ConnectionPool, message: Message, warm: bool
) -> None:
    """Receiving, and sending too: 12 MiB don't fit in the socket buffers."""
    if warm:
        pool.call(MATCH, soon())
    process.freeze()
    result, took_s = timed(pool, message, 0.3)
    assert result is DeadlineExceeded
    assert 0.29 < took_s < at_most(0.3)
    process.thaw()
    assert timed(pool, MATCH, 30)[0] == Matched([5])


def test_a_killed_server_is_an_error_at_once_and_its_successor_is_used(
    process: EchoProcess, pool: ConnectionPool
) -> None:
    assert timed(pool, MATCH, 30)[0] == Matched([5])
    process.kill()
    for _ in range(3):
        result, took_s = timed(pool, MATCH, 30)
        assert result is RpcFailed
        assert took_s < at_most(0.1)
    process.start()
    for _ in range(3):
        assert timed(pool, MATCH, 30)[0] == Matched([5])


def test_failed_calls_leave_no_descriptors(process: EchoProcess, pool: ConnectionPool) -> None:
    timed(pool, MATCH, 30)
    before = descriptors()
    for _ in range(20):
        assert timed(pool, Remove(KEYSPACE, b"", wait_ms=60_000), 0.01)[0] is DeadlineExceeded
    process.freeze()
    for _ in range(20):
        assert timed(pool, MATCH, 0.01)[0] is DeadlineExceeded
    process.kill()
    for _ in range(100):
        assert timed(pool, MATCH, 30)[0] is RpcFailed
    wait_until(lambda: descriptors() <= before)
