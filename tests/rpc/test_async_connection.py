"""The pipelined client: order, pushes, deadlines, loss of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from support.echo_server import HELLO, KEYSPACE, EchoHandler, push_of
from support.waiting import at_most, until

from moonpool.schemas.errors import (
    Closed,
    DeadlineExceeded,
    NoSpace,
    Overloaded,
    ProtocolError,
    RpcFailed,
    TooLarge,
    VersionMismatch,
)
from moonpool.schemas.framing import encode_frame
from moonpool.schemas.messages import (
    Clear,
    Done,
    Hello,
    Match,
    Matched,
    Message,
    Remove,
    Removed,
    Renew,
    Unpin,
    Welcome,
    decode_from_master,
    decode_master_request,
    encode,
)
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection, _outlasted
from moonpool.store_client.rpc.peer import Limits
from moonpool.store_client.rpc.server import RpcServer


@pytest.fixture
async def handler() -> EchoHandler:
    return EchoHandler()


@pytest.fixture
async def server(handler: EchoHandler) -> AsyncIterator[RpcServer]:
    server = RpcServer(handler, decode_master_request, "echo", Limits(frame_bytes_max=100_000))
    yield server
    await server.close()


@pytest.fixture
async def address(server: RpcServer) -> str:
    return f"127.0.0.1:{await server.listen_tcp('127.0.0.1', 0)}"


async def connect(address: str, **options: object) -> AsyncRpcConnection:
    return await AsyncRpcConnection.connect(address, HELLO, decode_from_master, timeout_s=30, **options)  # type: ignore[arg-type]


async def test_pipelined_calls_get_their_own_replies(address: str) -> None:
    connection = await connect(address)
    assert connection.welcome is not None
    assert connection.welcome.epoch == 7
    slowest = asyncio.create_task(connection.call(Remove(KEYSPACE, b"", wait_ms=60_000), 120))
    slow = asyncio.create_task(connection.call(Remove(KEYSPACE, b"", wait_ms=100), 30))
    replies = await asyncio.gather(*(connection.call(Match(KEYSPACE, [(i, b"")]), 30) for i in range(500)))
    assert replies == [Matched([i]) for i in range(500)]
    assert await slow == Removed(1, 0, [])
    assert not slowest.done()
    slowest.cancel()
    await connection.close()


async def test_pushes_come_in_order_and_before_the_reply_they_precede(address: str) -> None:
    pushes: list[Message] = []
    connection = await connect(address, on_push=pushes.append)
    assert await connection.call(Unpin(KEYSPACE, bytes(300)), 30) == Done()
    assert pushes == [push_of(i) for i in range(300)]
    await connection.close()


async def test_a_timeout_forgets_the_request_and_keeps_the_connection(address: str) -> None:
    connection = await connect(address)
    start_s = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"did not answer Remove within 0\.1 s"):
        await connection.call(Remove(KEYSPACE, b"", wait_ms=200), 0.1)
    assert time.monotonic() - start_s < at_most(0.1)
    await asyncio.sleep(0.15)  # the late reply comes and is dropped
    assert await connection.call(Match(KEYSPACE, [(1, b"")]), 30) == Matched([1])
    assert not connection.closed.done()
    await connection.close()


async def test_a_late_reply_is_given_to_who_wants_it(address: str) -> None:
    connection = await connect(address)
    late: list[Message] = []
    with pytest.raises(DeadlineExceeded):
        await connection.call(Remove(KEYSPACE, b"", wait_ms=200), 0.05, late.append)
    assert await connection.call(Remove(KEYSPACE, b"", wait_ms=1), 30, late.append) == Removed(1, 0, [])
    await until(lambda: late)
    assert late == [Removed(1, 0, [])]
    with pytest.raises(DeadlineExceeded):
        await connection.call(Remove(KEYSPACE, b"", wait_ms=60_000), 0.05, late.append)
    await connection.close()
    assert len(late) == 1, "a lost connection is no reply"


async def test_a_reply_of_the_moment_in_which_its_caller_gives_up_is_late() -> None:
    late: list[object] = []
    answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def held() -> None:
        time.sleep(0.06)  # the deadline is due, and in the same turn of the loop the reply is there
        answer.set_result(Done(1))

    async def call() -> Message:
        async with asyncio.timeout(0.05):
            return await _outlasted(answer, late.append)

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(held)
    with contextlib.suppress(TimeoutError):
        late.append(await task)
    await asyncio.sleep(0)
    assert late == [Done(1)], "once, in time or late"


async def test_refusals_are_raised(address: str) -> None:
    connection = await connect(address)
    with pytest.raises(NoSpace):
        await connection.call(Clear(KEYSPACE), 30)
    with pytest.raises(TooLarge):
        await connection.call(Renew(KEYSPACE, bytes(200_000)), 30)
    await connection.close()


async def test_requests_under_way_are_bounded(address: str) -> None:
    connection = await connect(address, inflight_max=3)
    waiting = [connection.send(Remove(KEYSPACE, b"", wait_ms=100)) for _ in range(3)]
    with pytest.raises(Overloaded):
        connection.send(Clear(KEYSPACE))
    assert await asyncio.gather(*waiting) == [Removed(1, 0, [])] * 3
    assert await connection.call(Match(KEYSPACE, [(1, b"")]), 30) == Matched([1])
    await connection.close()


async def test_a_lost_connection_fails_what_waits_and_says_why(
    server: RpcServer, address: str, handler: EchoHandler
) -> None:
    connection = await connect(address)
    call = asyncio.create_task(connection.call(Remove(KEYSPACE, b"", wait_ms=60_000), 40))
    await until(lambda: handler.handled)
    await server.close()
    with pytest.raises(RpcFailed):
        await call
    assert isinstance(await connection.closed, RpcFailed)
    with pytest.raises(Closed):
        await connection.call(Clear(KEYSPACE), 1)
    await connection.close()


async def test_close_fails_what_waits(address: str, handler: EchoHandler) -> None:
    connection = await connect(address)
    call = asyncio.create_task(connection.call(Remove(KEYSPACE, b"", wait_ms=60_000), 40))
    await until(lambda: handler.handled)
    await connection.close()
    with pytest.raises(Closed):
        await call
    assert connection.closed.result() is None
    await until(lambda: handler.cancelled == 1)


async def test_nobody_listens() -> None:
    with pytest.raises(RpcFailed, match=r"127\.0\.0\.1:1: "):
        await connect("127.0.0.1:1")
    with pytest.raises(RpcFailed):
        await connect("unix:/nowhere/s.sock")


async def test_another_version(address: str) -> None:
    with pytest.raises(VersionMismatch):
        await AsyncRpcConnection.connect(address, Hello(9, "client", "t"), decode_from_master, timeout_s=30)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", DeadlineExceeded),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError),
        (encode_frame(1, b"\xc1"), ProtocolError),
        (encode_frame(1, encode(Done())), ProtocolError),
        (encode_frame(1, encode(Welcome(9, "x", 0, 100))), VersionMismatch),
        (b"\xff\xff\xff\xff\x01\x00\x00\x00", ProtocolError),
    ],
    ids=["silent", "http", "no message", "no Welcome", "newer", "4 GiB prefix"],
)
async def test_a_server_that_is_none_of_ours(answer: bytes, error: type[Exception]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()  # the Hello, then the end
        writer.close()

    stranger = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = stranger.sockets[0].getsockname()[1]
    timeout_s = 30.0 if answer else 0.3
    with pytest.raises(error):
        await AsyncRpcConnection.connect(f"127.0.0.1:{port}", HELLO, decode_from_master, timeout_s=timeout_s)
    stranger.close()
    await stranger.wait_closed()
    await asyncio.sleep(0.02)
