"""A node process: settings in, one segment served until SIGTERM, its file left to be adopted."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from pathlib import Path
from types import FrameType

import msgspec
import uvloop

from moonpool.schemas.config import NodeSettings
from moonpool.schemas.messages import NodeInfo
from moonpool.schemas.units import format_size
from moonpool.store_client.host import user_run_dir
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.name_lock import name_lock
from moonpool.store_client.node.runtime import Node
from moonpool.store_client.node.segment import Progress, Segment, open_segment
from moonpool.store_client.rpc.quiet_memory import settle_memory
from moonpool.store_client.tracing import export_spans

logger = logging.getLogger(__name__)

PROGRESS_LOG_S = 5.0


def run_node(settings: NodeSettings, ready_file: str = "", *, forget: bool = False) -> None:
    """Serves until SIGTERM or SIGINT. Once all doors are open a line is printed, and `ready_file` (if any) gets the
    NodeInfo as JSON. The segment file stays, to be adopted by the next start, or is unlinked (`forget`). Raises ConfigError, InvalidParams (sizes) and RpcFailed (ports) before that."""
    layout = Layout.of(settings.size, settings.page_size)
    # Until the loop has handlers of its own: to lay out memory takes a while, and what is begun is to be tidied up.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    with name_lock(user_run_dir(settings.run_dir), settings.name):
        segment = open_segment(
            settings.segment_dir,
            settings.name,
            layout,
            huge_pages=_progress("laid out") if settings.huge_pages else None,
            numa_node=settings.numa_node,
        )
        try:
            if settings.prefault:
                _prefault(segment)
            end_spans = export_spans("moonpool-node") if settings.tracing else None
            try:
                uvloop.run(_serve(settings, segment, ready_file))
            finally:
                if end_spans is not None:
                    end_spans()
        finally:
            if forget:
                segment.unlink()
            segment.close()


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


async def _serve(settings: NodeSettings, segment: Segment, ready_file: str) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)

    def ready(info: NodeInfo) -> None:
        settle_memory()
        if ready_file:
            partial = Path(f"{ready_file}.partial")
            partial.write_bytes(
                msgspec.json.encode(msgspec.structs.asdict(info) | {"segment": info.segment.hex()})
            )
            partial.replace(ready_file)
        print(
            f"node {info.node} listening on {info.rpc_address} with data lanes on {info.data_address}, "
            f"{format_size(info.capacity_bytes)} at {info.segment_path}",
            flush=True,
        )

    await Node(settings, segment).run(stopped, ready)


def _prefault(segment: Segment) -> None:
    started_s = time.monotonic()
    segment.prefault(_progress("touched"))
    size, huge = map(format_size, (segment.head.layout.capacity_bytes, segment.mapping.huge_bytes()))
    took_s = time.monotonic() - started_s
    logger.info("touched %s of memory in %.1f s, %s of it in huge pages", size, took_s, huge)


def _progress(done: str) -> Progress:
    """A line every few seconds."""
    logged_s = time.monotonic()

    def progress(done_bytes: int, all_bytes: int) -> None:
        nonlocal logged_s
        if time.monotonic() - logged_s > PROGRESS_LOG_S:
            logged_s = time.monotonic()
            logger.info("%s %s of %s", done, format_size(done_bytes), format_size(all_bytes))

    return progress
