"""The master process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
from collections.abc import Callable, Mapping

import uvloop

from moonpool.master.membership.seat import take_seat
from moonpool.master.server import MasterServer
from moonpool.schemas.config import MasterSettings
from moonpool.store_client.rpc.quiet_memory import settle_memory
from moonpool.store_client.tracing import export_spans

log = logging.getLogger(__name__)


def run_master(
    settings: MasterSettings,
    on_ready: Callable[[str], None] | None = None,
    origins: Mapping[str, str] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT. `on_ready` is called with the address that it listens on. `origins`: where each
    setting came from.

    Raises RpcFailed where the port can't be had; ConfigError where its cluster was made with other settings.
    """
    _raise_descriptor_limit(settings.connections_max)
    end_spans = export_spans("moonpool-master") if settings.tracing else None
    try:
        uvloop.run(_serve(settings, on_ready, origins))
    finally:
        if end_spans is not None:
            end_spans()


async def _serve(
    settings: MasterSettings,
    on_ready: Callable[[str], None] | None,
    origins: Mapping[str, str] | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    seat = await take_seat(settings)
    master = MasterServer(settings, origins, seat)
    try:
        address = await master.start()
    except BaseException:
        await master.close()
        raise
    settle_memory()
    log.info("master listening on %s", address)
    if on_ready is not None:
        on_ready(address)
    try:
        await stop.wait()
    finally:
        await master.close()
        log.info("master stopped")


def _raise_descriptor_limit(connections_max: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(connections_max + 256, hard) if hard != resource.RLIM_INFINITY else connections_max + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some containers forbid it; the kernel's limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
