"""The node's door for transfer engines: readers of other hosts read the segment by address, writers have it pull."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from moonpool.schemas.config import NodeSettings
from moonpool.schemas.errors import MoonpoolError, Overloaded
from moonpool.schemas.messages import Granted, PullWrite
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.engine_pulls import PullHooks, Pulls
from moonpool.store_client.node.segment import Segment
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.transports.engine.engine import Engine, try_engine
from moonpool.store_client.transports.engine.landing import Landing

logger = logging.getLogger(__name__)

PULLS_AT_ONCE = 2
"""Each waits busily for its transfer."""

PULLS_WAITING_MAX = 64


class EngineDoor:
    """Open from when it is made until `close`. The engine itself lasts as long as the process."""

    def __init__(self, engine: Engine, segment: Segment, core: NodeCore, hooks: PullHooks) -> None:
        """Registers the whole segment, which pins it where the protocol has devices: seconds for many GB. Raises
        TransferFailed."""
        self._engine = engine
        self.base = address_of(np.frombuffer(segment.buffer, dtype=np.uint8))
        engine.register(self.base, segment.head.layout.file_bytes)
        self._landing = Landing(engine, HostCopier(), PULLS_AT_ONCE)
        self._pulls = Pulls(core, engine, self._landing, hooks, self.base)
        self._threads = ThreadPoolExecutor(PULLS_AT_ONCE, thread_name_prefix="pull")
        self._under_way = 0

    @property
    def address(self) -> str:
        """For NodeInfo."""
        return str(self._engine.address)

    async def pull(self, request: PullWrite) -> Granted:
        """Carries it out in a thread. Raises MoonpoolError."""
        if self._under_way >= PULLS_AT_ONCE + PULLS_WAITING_MAX:
            raise Overloaded(what="the transport mooncake", limit=f"{PULLS_WAITING_MAX} puts waiting")
        self._under_way += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._pulls.write, request)
        finally:
            self._under_way -= 1

    def facts(self) -> dict[str, int]:
        """Counters."""
        return {**self._pulls.counters, "pull_blocks_given_up": self._landing.given_up}

    def close(self) -> None:
        """Waits for pulls under way (some seconds at most); readers fail from now on."""
        self._threads.shutdown(cancel_futures=True)
        self._landing.close()
        self._engine.unregister(self.base)


def open_door(
    settings: NodeSettings, segment: Segment, core: NodeCore, hooks: PullHooks
) -> EngineDoor | None:
    """None where the settings want none, or it can't be had: the log says why, and the node goes on without."""
    if not settings.engine_protocol:
        return None
    host = settings.advertise or settings.host
    host = f"[{host}]" if ":" in host else host
    engine = try_engine(
        settings.engine_protocol, host, settings.engine_devices, f"node {settings.name} goes on with tcp"
    )
    if engine is None:
        return None
    try:
        return EngineDoor(engine, segment, core, hooks)
    except MoonpoolError as error:
        logger.warning("transport mooncake is off, node %s goes on with tcp: %s", settings.name, error)
        return None
