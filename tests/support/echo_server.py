"""A small RpcServer whose handler shows every way to answer. `python echo_server.py [port]` runs it alone."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Self

import uvloop

from moonpool.schemas.errors import NoSpace
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    Check,
    Clear,
    Describe,
    Done,
    GetStatus,
    Hello,
    Locate,
    Match,
    Matched,
    Message,
    Present,
    Remove,
    Removed,
    Unpin,
    decode_master_request,
)
from moonpool.store_client.rpc.access import Access
from moonpool.store_client.rpc.peer import Limits, Peer
from moonpool.store_client.rpc.server import RpcServer
from moonpool.store_client.rpc.server_spans import ServerSpans

HELLO = Hello(protocol=PROTOCOL_VERSION, role="client", client="test")
KEYSPACE = bytes(16)
MATCH = Match(KEYSPACE, [(5, bytes(320))])
ECHO_SERVER = __file__
"""To be run."""


class EchoHandler:
    """Match: at once. Remove: after wait_ms. Clear: refused. Describe: a bug. Unpin: pushes, then closes nothing.
    Locate: a reply of `rank` bytes. Anything else: Done."""

    epoch = 7

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.connects = 0
        self.disconnects = 0
        self.handled = 0
        self.cancelled = 0
        self.most_under_way = 0
        self._under_way = 0
        self.note: Callable[[Peer], None] = lambda peer: None
        """Called with whoever asks, at each request."""

    def handle(self, message: Message, peer: Peer) -> Message | Awaitable[Message]:
        self.handled += 1
        self.note(peer)
        match message:
            case Match(runs=runs):
                return Matched([position for position, _ in runs])
            case Remove(wait_ms=wait_ms):
                return self._later(wait_ms / 1000)
            case Clear():
                raise NoSpace(wanted_bytes=1, where="nowhere")
            case Describe():
                raise ValueError("a bug")
            case Locate(rank=size_bytes):
                return Present(bytes(size_bytes))
            case Unpin(hashes=hashes):
                for position in range(len(hashes)):
                    peer.push(push_of(position))
            case GetStatus():
                return Done(len(self.peers))
        return Done()

    def connected(self, peer: Peer) -> None:
        self.connects += 1
        self.peers.append(peer)

    def disconnected(self, peer: Peer) -> None:
        self.disconnects += 1
        self.peers.remove(peer)

    async def _later(self, pause_s: float) -> Message:
        self._under_way += 1
        self.most_under_way = max(self.most_under_way, self._under_way)
        try:
            await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self._under_way -= 1
        return Removed(count=1, skipped=0, pending=[])


def push_of(position: int) -> Check:
    """A push that can be told from others."""
    return Check(epoch=7, keyspace=KEYSPACE, rank=0, block_hash=b"", slot=position, generation=0)


class ThreadedServer:
    """An RpcServer with an EchoHandler on uvloop in a thread, for blocking clients."""

    def __init__(
        self,
        limits: Limits | None = None,
        unix_path: str = "",
        port: int = 0,
        *,
        traced: bool = False,
        near: bool = False,
        access: Access | None = None,
    ) -> None:
        self.handler = EchoHandler()
        self.address = ""
        self._limits = limits
        self._traced = traced
        self._near = near
        self._access = access
        self._unix_path = unix_path
        self._port = port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echo server")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Closes the server and joins its thread."""
        if self._thread.is_alive():
            self.in_loop(self._stop.set)
            self._thread.join(60)
        assert not self._thread.is_alive()

    def in_loop(self, call: Callable[[], object]) -> None:
        """Runs something in the server's event loop, soon."""
        self._loop.call_soon_threadsafe(call)

    @property
    def connections(self) -> int:
        """Open now."""
        return self._server.connections

    def _run(self) -> None:
        uvloop.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._server = RpcServer(
            self.handler,
            decode_master_request,
            "echo",
            self._limits,
            access=self._access,
            spans=ServerSpans.of("echo", wanted=self._traced),
        )
        port = await self._server.listen_tcp("127.0.0.1", self._port)
        if self._near:
            await self._server.listen_near(port)
        self.address = f"127.0.0.1:{port}"
        if self._unix_path:
            await self._server.listen_unix(self._unix_path)
        self._ready.set()
        await self._stop.wait()
        await self._server.close()


async def _alone(port: int) -> None:
    server = RpcServer(EchoHandler(), decode_master_request, "echo", Limits(stall_timeout_s=2))
    print(f"listening on 127.0.0.1:{await server.listen_tcp('127.0.0.1', port)}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    uvloop.run(_alone(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
