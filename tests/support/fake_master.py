"""A master that does as a test says, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Self

from moonpool.schemas.errors import MoonpoolError, StreamGap
from moonpool.schemas.messages import (
    Announce,
    Announced,
    Checked,
    ClusterMap,
    Done,
    DropDone,
    GetClusterMap,
    Heartbeat,
    InventoryEnd,
    KeyspaceRegistered,
    Message,
    Need,
    Obeyed,
    Op,
    RegisterKeyspace,
    Report,
    Victims,
    decode_master_request,
)
from moonpool.store_client.rpc.peer import Peer
from moonpool.store_client.rpc.server import RpcServer
from support.node_sink import IndexSink
from support.ports import free_ports


class FakeMaster:
    """`index` follows the reports of the current stream. Reports are refused while `refusal` is set."""

    def __init__(self, epoch: int = 5) -> None:
        self.epoch = epoch
        (self.port,) = free_ports(1)
        self.peers: list[Peer] = []
        self.announces: list[Announce] = []
        self.beats: list[Heartbeat] = []
        self.streams: list[int] = []
        self.ops: list[Op] = []
        self.index = IndexSink()
        self.complete = False
        self.keyspaces: set[bytes] = set()
        self.refusal: MoonpoolError | None = None
        self.victims = Victims([], 0, -1)
        self.need_takes_s = 0.0
        self.reports = 0
        self._next = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    async def start(self) -> None:
        """Listens, always on the same port."""
        self.server = RpcServer(self, decode_master_request, "master")
        self.port = await self.server.listen_tcp("127.0.0.1", self.port)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def handle(self, message: Message, peer: Peer) -> Message | Awaitable[Message]:
        match message:
            case Announce():
                self.announces.append(message)
                self.keyspaces |= {spec.digest() for spec in message.specs}
                return self._announced()
            case Heartbeat():
                self.beats.append(message)
                return self._announced()
            case Report():
                return self._take(message)
            case GetClusterMap():
                return ClusterMap(self.epoch, 1, [self.address], [])
            case Need():
                victims, self.victims = self.victims, Victims([], 0, -1)
                return self._later(victims) if self.need_takes_s else victims
            case RegisterKeyspace():
                digest = message.spec.digest()
                self.keyspaces.add(digest)
                return KeyspaceRegistered(digest, 1)
        raise AssertionError(message)

    async def _later(self, message: Message) -> Message:
        await asyncio.sleep(self.need_takes_s)
        return message

    def _announced(self) -> Announced:
        return Announced(self.epoch, 50, 1, [(0, self.epoch)])

    def _take(self, report: Report) -> Message:
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        if report.sequence == 0:
            self.streams.append(report.stream)
            self.index = IndexSink()
            self.complete = False
            self._next = 0
        if (report.stream, report.sequence) != (self.streams[-1], self._next):
            raise StreamGap(expected=self._next, got=report.sequence)
        self._next += 1
        self.reports += 1
        for op in report.ops:
            assert getattr(op, "keyspace", None) in {None, *self.keyspaces}, "told of no such keyspace"
            self.ops.append(op)
            if not isinstance(op, DropDone | Checked | InventoryEnd | Obeyed):
                self.index.play(op)
            self.complete |= isinstance(op, InventoryEnd)
        return Done()

    def connected(self, peer: Peer) -> None:
        self.peers.append(peer)

    def disconnected(self, peer: Peer) -> None:
        self.peers.remove(peer)

    def push(self, message: Message) -> None:
        """To the node that connected last."""
        assert self.peers[-1].push(message)
