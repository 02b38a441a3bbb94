"""The master in an event loop: its core, its handler and the RPC server before them."""

from __future__ import annotations

import time

from moonpool.master.core import MasterCore
from moonpool.master.handler import MasterHandler
from moonpool.master.steady_clock import SteadyClock
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.messages import decode_master_request
from moonpool.store_client.rpc.peer import Limits
from moonpool.store_client.rpc.server import RpcServer


class MasterServer:
    """One master. To be used in one event loop."""

    def __init__(self, settings: MasterSettings) -> None:
        self._settings = settings
        # Without hard state the start time stands for the epoch: later masters have greater ones.
        core = MasterCore(shards=1, epoch=time.time_ns() // 1_000_000, settings=settings)
        self._handler = MasterHandler(core, SteadyClock())
        limits = Limits(connections_max=settings.connections_max, inflight_max=settings.inflight_max)
        self._server = RpcServer(self._handler, decode_master_request, "master", limits)

    async def start(self) -> str:
        """Listens. Returns "host:port". Raises RpcFailed where the port can't be had."""
        host = self._settings.host
        port = await self._server.listen_tcp(host, self._settings.port)
        self._handler.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._handler.start_ticks()
        return self._handler.address

    async def close(self) -> None:
        """Ends all connections."""
        self._handler.stop_ticks()
        await self._server.close()
