"""The parts of one node, wired to each other and run in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from moonpool.schemas.config import NodeSettings
from moonpool.schemas.errors import Overloaded
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Begin, BeginItem, Granted, NodeInfo, Victims, decode_node_request
from moonpool.schemas.metrics import Samples
from moonpool.store_client.directory import Directory
from moonpool.store_client.host import host_id, user_run_dir
from moonpool.store_client.node.adoption import adopt
from moonpool.store_client.node.checksums import Checksums
from moonpool.store_client.node.copies import Copies, CopyHooks
from moonpool.store_client.node.copy_source import LaneSource
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.engine_door import EngineDoor, open_door
from moonpool.store_client.node.engine_pulls import PullHooks
from moonpool.store_client.node.fences import Fences
from moonpool.store_client.node.inventory import Inventory
from moonpool.store_client.node.lane_writes import LaneHooks
from moonpool.store_client.node.lanes import LaneServer
from moonpool.store_client.node.layout import epochs_seen
from moonpool.store_client.node.masters import Masters
from moonpool.store_client.node.metrics import node_samples
from moonpool.store_client.node.metrics_page import MetricsPage, open_page
from moonpool.store_client.node.name_reader import NameReader
from moonpool.store_client.node.names import Names
from moonpool.store_client.node.orders import Reporter
from moonpool.store_client.node.outlets import Outlets
from moonpool.store_client.node.puts import LANES
from moonpool.store_client.node.report_streams import ReportStreams
from moonpool.store_client.node.seen_puts import SeenPuts
from moonpool.store_client.node.segment import Segment
from moonpool.store_client.node.server import LocalHandler, NodeParts, RemoteHandler
from moonpool.store_client.node.sessions import Sessions
from moonpool.store_client.node.small_puts import SmallPuts
from moonpool.store_client.node.space import SpaceKeeper
from moonpool.store_client.rpc.access import Access, check_guarded
from moonpool.store_client.rpc.credentials import Credentials
from moonpool.store_client.rpc.https import page_tls
from moonpool.store_client.rpc.server import RpcServer
from moonpool.store_client.rpc.server_spans import ServerSpans
from moonpool.store_client.rpc.timings import CallTimings
from moonpool.store_client.rpc.tls import ServerTls
from moonpool.store_client.rpc.tokens import TokenFile

logger = logging.getLogger(__name__)

VISIBLE_WAIT_S = 2.0
SESSIONS_POLL_S = 0.25
LOOK_TIMEOUT_S = 5.0


class Node:
    """One segment, served until `run` is told to stop."""

    def __init__(self, settings: NodeSettings, segment: Segment) -> None:
        """Adopts what the segment holds. To be made in the event loop that runs it. Raises ConfigError, also where
        it would listen beyond this host unguarded."""
        check_guarded(settings.host, settings)
        if settings.metrics_port:
            check_guarded(settings.metrics_host, settings, "metrics_host")
        self._tokens = TokenFile(settings.tokens_file) if settings.tokens_file else None
        self._access = Access(self._tokens)
        self._tls = ServerTls.of(settings.tls_cert, settings.tls_key, settings.tls_ca)
        self._page_tls = page_tls(settings)
        self._credentials = Credentials.of(settings)
        self._settings = settings
        self._segment = segment
        self._started_s = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._checksums = Checksums() if settings.checksums else None
        self._streams = ReportStreams(
            segment.head.segment,
            lambda shard: Inventory(self.core.slots, shard),
            lambda: secrets.randbits(63),
            lambda shard: self.core.drops.obeyed.of(shard),
            lambda: self.core.slots.next_generation,
        )
        self._outlets = Outlets(self._streams, self._checksums)
        self.core = NodeCore(segment, self._outlets)
        self._outlets.names = names = Names(self.core.slots)
        self._names = NameReader(self.core, names)
        self._sessions = Sessions(settings.sessions_max)
        if segment.adopted:
            adopt(self.core, self._sessions.adopt)
            logger.info("adopted %s with %d objects", segment.path, self.core.slots.committed)
        self._masters: Masters | None = None
        self._keeper = SpaceKeeper(
            self.core,
            self._need,
            begin_wait_s=settings.begin_wait_s,
            high_watermark=settings.high_watermark,
            low_watermark=settings.low_watermark,
        )
        self._put_ids = itertools.count(1)
        self._seen = SeenPuts(self.core, self._streams.watch, VISIBLE_WAIT_S, self._streams.settled)
        self._engine_door: EngineDoor | None = None
        self._spans = ServerSpans.of("node", wanted=settings.tracing)
        hooks = LaneHooks(
            self._lane_begin,
            self._lane_register,
            self._streams.watch,
            VISIBLE_WAIT_S,
            self._put_ids,
            self._streams.settled,
            self._spans,
        )
        self._fences = Fences(epochs_seen(segment.buffer))
        self._copies = Copies(
            self.core,
            self._outlets,
            LaneSource(settings.name, self.core.head.segment, self._credentials),
            CopyHooks(self._lane_register, self._fences.fresh, self._put_ids),
        )
        self._lanes = LaneServer(self.core, hooks, settings.lanes_max, self._access, self._tls)

    async def run(self, stopped: asyncio.Event, ready: Callable[[NodeInfo], None]) -> None:
        """Opens all doors, calls `ready`, reports to the master. The segment file stays when this returns."""
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._sessions.close)
            stack.callback(self._names.close)
            if self._checksums is not None:
                self._checksums.start(self.core)
                stack.callback(self._checksums.close)
            stack.push_async_callback(self._keeper.close)
            self._copies.start()
            stack.push_async_callback(asyncio.to_thread, self._copies.close)
            data_port = self._lanes.start(settings.host, settings.data_port)
            stack.push_async_callback(asyncio.to_thread, self._lanes.close)
            self._engine_door = door = await asyncio.to_thread(self._open_engine_door)
            if door is not None:
                stack.push_async_callback(asyncio.to_thread, door.close)
            remote = RpcServer(
                RemoteHandler(
                    self._register, self.facts, self.core, self._small_puts("small_bytes_written"), door
                ),
                decode_node_request,
                "node",
                access=self._access,
                tls=self._tls,
                spans=self._spans,
            )
            stack.push_async_callback(remote.close)
            info = self._info(await remote.listen_tcp(settings.host, settings.port), data_port)
            parts = NodeParts(
                info,
                self.core,
                self._sessions,
                self._keeper,
                self._seen,
                self._small_puts("local_bytes"),
            )
            local = RpcServer(
                LocalHandler(self._register, self.facts, parts),
                decode_node_request,
                "node",
                access=self._access,
                spans=self._spans,
            )
            stack.push_async_callback(local.close)
            await local.listen_unix(info.unix_path)
            self._masters = self._make_masters(info)
            page = await self._open_metrics_page({"tcp": remote.timings, "unix": local.timings})
            if page is not None:
                stack.push_async_callback(asyncio.to_thread, page.close)
            ready(info)
            await self._until(stopped, self._masters.run(), self._keeper.run(), self._poll_sessions())

    def _small_puts(self, counter: str) -> SmallPuts:
        return SmallPuts(self.core, self._keeper, self._seen, self._put_ids, counter)

    def _make_masters(self, info: NodeInfo) -> Masters:
        reporter = Reporter(
            info,
            self.core,
            self._streams,
            self._outlets,
            self._fences,
            self.numbers,
            self._copies,
            want_names=self._names.want,
            credentials=self._credentials,
        )
        return Masters(Directory.of(self._settings), reporter)

    async def _until(self, stopped: asyncio.Event, *parts: Coroutine[Any, Any, None]) -> None:
        """Runs the parts; one that ends before `stopped` is a bug, and raises here."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
            await stopped.wait()
            for task in tasks:
                task.cancel()

    async def _open_metrics_page(self, doors: Mapping[str, CallTimings]) -> MetricsPage | None:
        if not self._settings.metrics_port:
            return None

        async def look() -> Samples:
            return node_samples(self.numbers(), doors)

        # Numbers are read where they are written: in the event loop.
        return open_page(
            self._settings.metrics_host,
            self._settings.metrics_port,
            lambda: asyncio.run_coroutine_threadsafe(look(), self._loop).result(LOOK_TIMEOUT_S),
            self._tokens,
            self._page_tls,
        )

    def _open_engine_door(self) -> EngineDoor | None:
        hooks = PullHooks(self._lane_begin, self._streams.wait, VISIBLE_WAIT_S, self._put_ids)
        return open_door(self._settings, self._segment, self.core, hooks)

    def _info(self, rpc_port: int, data_port: int) -> NodeInfo:
        settings, layout = self._settings, self.core.head.layout
        name = settings.advertise or settings.host
        name = f"[{name}]" if ":" in name else name
        return NodeInfo(
            node=settings.name,
            segment=self.core.head.segment,
            host=host_id(settings.segment_dir),
            rpc_address=f"{name}:{rpc_port}",
            data_address=f"{name}:{data_port}",
            unix_path=str(user_run_dir(settings.run_dir) / f"{settings.name}.sock"),
            segment_path=str(self._segment.path),
            capacity_bytes=layout.capacity_bytes,
            page_bytes=layout.page_bytes,
            engine_address=self._engine_door.address if self._engine_door is not None else "",
            engine_base=self._engine_door.base if self._engine_door is not None else 0,
        )

    async def _poll_sessions(self) -> None:
        while True:
            for session in self._sessions.poll(time.monotonic()):
                with self.core.lock:
                    self.core.end_session(session)
                logger.info("session %x ended: its process is gone", session)
            await asyncio.sleep(SESSIONS_POLL_S)

    # ------------------------------------------------------------ what the parts ask of each other

    def _register(self, spec: KeyspaceSpec) -> bytes:
        with self.core.lock:
            digest = self.core.register(spec, time.monotonic())
        if self._masters is not None:
            self._masters.tell_keyspace(spec)
        return digest

    async def _need(self, want_bytes: int) -> Victims | None:
        return await self._masters.need(want_bytes) if self._masters is not None else None

    def _lane_register(self, spec: KeyspaceSpec) -> bytes:
        async def register() -> bytes:
            return self._register(spec)

        return asyncio.run_coroutine_threadsafe(register(), self._loop).result()

    def _lane_begin(self, put_id: int, item: BeginItem) -> Granted:
        """Called by a lane's thread; waits for space as local writers do."""
        with self.core.lock:
            answer = self.core.lane_begin(put_id, item, partial=False)
        if isinstance(answer, Granted):
            if self._keeper.is_low:
                with contextlib.suppress(RuntimeError):  # the loop ends
                    self._loop.call_soon_threadsafe(self._keeper.look)
            return answer
        waiting = self._keeper.begin(LANES, Begin(LANES, put_id, [item]))
        try:
            return asyncio.run_coroutine_threadsafe(waiting, self._loop).result()
        except (RuntimeError, asyncio.CancelledError):  # the loop ends
            waiting.close()
            raise Overloaded(what="the node", limit="it is stopping") from None

    # ------------------------------------------------------------ status

    def numbers(self) -> dict[str, int | float]:
        """Counters and sizes."""
        core, allocator, masters = self.core, self.core.slots.allocator, self._masters
        lanes = self._lanes.facts()
        return {
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "capacity_bytes": core.head.layout.capacity_bytes,
            "free_bytes": allocator.free_bytes,
            "high_watermark_bytes": int(core.head.layout.capacity_bytes * self._settings.high_watermark),
            "low_watermark_bytes": int(core.head.layout.capacity_bytes * self._settings.low_watermark),
            "used_bytes": allocator.used_bytes,
            "pages": core.head.layout.page_count,
            "pages_free": allocator.pool_pages,
            "objects": core.slots.committed,
            "objects_writing": int(core.slots.writing.sum()),
            "keyspaces": len(core.keyspaces.specs()),
            "sessions": len(self._sessions),
            "streams_started": self._streams.facts.streams_started,
            "report_rows_queued": self._streams.facts.queued_rows,
            "master_epoch": max((link.epoch for link in masters.links), default=0) if masters else 0,
            "master_connected": masters.connected if masters else 0,
            "master_hears_first": masters.hearing_first if masters else 0,
            "checksums_queued": self._checksums.queued if self._checksums is not None else 0,
            "checksums_computed": self._checksums.all_computed if self._checksums is not None else 0,
            "checksums_skipped": self._checksums.skipped if self._checksums is not None else 0,
            **core.counters,
            **self._keeper.counters,
            **(masters.counters if masters else {}),
            **lanes,
            "tcp_bytes_read": lanes["lane_bytes_read"] + core.counters["small_bytes_read"],
            "tcp_bytes_written": lanes["lane_bytes_written"] + core.counters["small_bytes_written"],
            **self._copies.facts(),
            **(self._engine_door.facts() if self._engine_door is not None else {}),
        }

    def facts(self) -> dict[str, int | float | str]:
        """The same with names, for GetStatus."""
        return {
            "node": self._settings.name,
            "segment": self.core.head.segment.hex(),
            "segment_path": str(self._segment.path),
            **self.numbers(),
        }
