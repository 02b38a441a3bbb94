"""Replies that a handler gives later in the same event loop."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from moonpool.schemas.errors import DeadlineExceeded, NotFound
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    Done,
    GetStatus,
    Hello,
    Message,
    decode_from_master,
    decode_master_request,
)
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection
from moonpool.store_client.rpc.later import Later
from moonpool.store_client.rpc.peer import Limits, Peer
from moonpool.store_client.rpc.server import RpcServer


class Noted(Later):
    """Notes that nobody waits any more. As handlers have them: more than a plain Later."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up = 0

    def left(self) -> None:
        self.given_up += 1


class Handler:
    epoch = 1

    def __init__(self) -> None:
        self.asked: list[Noted] = []
        self.at_once: Message | Exception | None = None

    def handle(self, message: Message, peer: Peer) -> Later:
        later = Noted()
        if self.at_once is not None:
            later.set(self.at_once)
        self.asked.append(later)
        return later

    def connected(self, peer: Peer) -> None: ...

    def disconnected(self, peer: Peer) -> None: ...


async def started(handler: Handler, limits: Limits | None = None) -> tuple[RpcServer, AsyncRpcConnection]:
    server = RpcServer(handler, decode_master_request, "test", limits or Limits())
    port = await server.listen_tcp("127.0.0.1", 0)
    hello = Hello(PROTOCOL_VERSION, "client", "test")
    connection = await AsyncRpcConnection.connect(
        f"127.0.0.1:{port}", hello, decode_from_master, timeout_s=30
    )
    return server, connection


async def until(holds: object) -> None:
    async with asyncio.timeout(30):
        while not holds():  # type: ignore[operator]
            await asyncio.sleep(0.001)


async def test_replies_come_in_any_order_without_a_task_each() -> None:
    handler = Handler()
    server, connection = await started(handler)
    before = len(asyncio.all_tasks())
    waiting = [connection.send(GetStatus()) for _ in range(3)]
    await until(lambda: len(handler.asked) == 3)
    assert len(asyncio.all_tasks()) == before and len(server._service.tasks) == 3
    handler.asked[2].set(Done(2))
    handler.asked[0].set(NotFound(key="nothing"))
    handler.asked[1].set(Done(1))
    handler.asked[1].set(Done(7))
    assert not server._service.tasks
    assert [(await one) for one in waiting[1:]] == [Done(1), Done(2)]
    assert type(await waiting[0]).__name__ == "Failed"
    await connection.close()
    await server.close()


async def test_what_is_there_at_once() -> None:
    handler = Handler()
    handler.at_once = Done(5)
    server, connection = await started(handler)
    assert await connection.call(GetStatus(), 30) == Done(5)
    await connection.close()
    await server.close()


async def test_more_than_may_be_under_way_wait_in_the_socket() -> None:
    handler = Handler()
    server, connection = await started(handler, Limits(inflight_max=2))
    waiting = [connection.send(GetStatus()) for _ in range(5)]
    for number in range(5):
        await until(lambda number=number: len(handler.asked) > number)
        assert len(handler.asked) <= number + 2
        handler.asked[number].set(Done(number))
        assert await waiting[number] == Done(number)
    await connection.close()
    await server.close()


async def test_a_lost_connection_gives_them_up() -> None:
    handler = Handler()
    server, connection = await started(handler)
    future = connection.send(GetStatus())
    await until(lambda: handler.asked)
    await connection.close()
    await until(lambda: handler.asked[0].given_up)
    assert handler.asked[0].over and not server._service.tasks
    handler.asked[0].set(Done())
    assert handler.asked[0].given_up == 1 and future.exception() is not None
    await server.close()


async def test_handlers_may_wait_for_them_too() -> None:
    good, bad, left = Noted(), Noted(), Noted()
    tasks = [asyncio.ensure_future(_wait_for(one)) for one in (good, bad, left)]
    await asyncio.sleep(0)
    good.set(Done(1))
    bad.set(DeadlineExceeded(peer="p", what="w", timeout_s=1.0))
    tasks[2].cancel()
    assert await tasks[0] == Done(1)
    with pytest.raises(DeadlineExceeded):
        await tasks[1]
    with pytest.raises(asyncio.CancelledError):
        await tasks[2]
    assert (good.given_up, bad.given_up, left.given_up) == (0, 0, 1)


async def _wait_for(later: Later) -> Message:
    return await later


async def test_nothing_is_left_for_the_garbage_collector() -> None:
    handler = Handler()
    server, connection = await started(handler)
    gc.disable()
    try:
        future = connection.send(GetStatus())
        await until(lambda: handler.asked)
        handler.asked[0].set(Done())
        await future
        gone = weakref.WeakSet(handler.asked)
        handler.asked.clear()
        await asyncio.sleep(0)
        assert not gone
    finally:
        gc.enable()
    await connection.close()
    await server.close()
