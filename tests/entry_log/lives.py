"""Lives of masters: each from its start to its end, with a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from support.report_node import KEYSPACE, chain

from moonpool.master.membership.seat import Seat
from moonpool.master.server import MasterServer
from moonpool.master.store.memory import MemoryStore
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import GetStatus, Hello, Match, Matched, StatusReport, decode_from_master
from moonpool.schemas.packed import join_hashes
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection

HASHES = chain(3000)
T_S = 120.0


class Life:
    """One master, from its start to its end, and a client of it."""

    def __init__(self, store: str, log_every_s: float = 0.05) -> None:
        self._settings = MasterSettings(
            port=0, heartbeat_s=0.5, suspect_after_s=20, lost_after_s=30, store=store, log_every_s=log_every_s
        )

    async def start(self, shared: MemoryStore | None = None) -> None:
        """`shared`: what it has instead of etcd."""
        seat = Seat(shared, 4, self._settings) if shared is not None else None
        self.server = MasterServer(self._settings, seat=seat)
        self.address = await self.server.start()
        hello = Hello(PROTOCOL_VERSION, role="client", client="test")
        self.client = await AsyncRpcConnection.connect(self.address, hello, decode_from_master, timeout_s=T_S)

    async def close(self) -> None:
        await self.client.close()
        await self.server.close()

    async def facts(self) -> dict[str, int | float | str]:
        reply = await self.client.call(GetStatus(), T_S)
        assert isinstance(reply, StatusReport)
        return reply.facts

    async def ready(self) -> int:
        reply = await self.client.call(Match(KEYSPACE, [(0, join_hashes(HASHES[:64]))]), T_S)
        assert isinstance(reply, Matched)
        return reply.ready[0]

    async def until(self, holds: Callable[[dict[str, int | float | str]], bool]) -> None:
        async with asyncio.timeout(T_S):
            while not holds(await self.facts()):
                await asyncio.sleep(0.02)
