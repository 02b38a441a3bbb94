"""The master in an event loop: its core, its handler and the RPC server before them."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import time
from collections.abc import Mapping

from moonpool.master.core import MasterCore
from moonpool.master.entry_log.logs import EntryLogs
from moonpool.master.handler import MasterHandler
from moonpool.master.hard_requests import HardRequests
from moonpool.master.kv_curve import CurveGuard
from moonpool.master.kv_events import KvEvents
from moonpool.master.kv_feed import KvFeed
from moonpool.master.membership.host import CoreHost
from moonpool.master.membership.records import owns
from moonpool.master.membership.seat import Seat, advertised, advertised_page
from moonpool.master.recorder import Recorder, unfenced
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.server import RestServer, missing_libraries
from moonpool.master.steady_clock import SteadyClock
from moonpool.master.store.base import Condition
from moonpool.master.store.opening import IN_MEMORY, open_store
from moonpool.master.store.timed import TimedStore
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import RpcFailed
from moonpool.schemas.messages import decode_master_request
from moonpool.store_client.rpc.access import Access, check_bare, check_guarded
from moonpool.store_client.rpc.peer import Limits
from moonpool.store_client.rpc.server import RpcServer
from moonpool.store_client.rpc.server_spans import ServerSpans
from moonpool.store_client.rpc.tls import ServerTls
from moonpool.store_client.rpc.tokens import TokenFile

log = logging.getLogger(__name__)


class MasterServer:
    """One master. To be used in one event loop."""

    def __init__(
        self,
        settings: MasterSettings,
        origins: Mapping[str, str] | None = None,
        seat: Seat | None = None,
    ) -> None:
        """`origins`: where each setting came from. `seat`: in a cluster of several masters; None: it is alone. Raises
        ConfigError, also where it would listen beyond this host unguarded."""
        check_guarded(settings.host, settings)
        if settings.http_port:
            check_guarded(settings.http_host, settings, "http_host")
        if settings.events_port:
            check_bare(settings.events_host, settings)
        self.http_address = ""
        """Of the REST interface, once it is there."""
        self._settings = settings
        self._origins = origins or {}
        self._clock = SteadyClock()
        self._feed = KvFeed(int_hashes=settings.events_int_hashes) if settings.events_port else None
        self._events: KvEvents | None = None
        self._seat = seat
        # Without hard state the start time stands for the epoch: later masters have greater ones.
        self._core = core = MasterCore(
            shards=seat.shards if seat is not None else settings.shards or 1,
            epoch=time.time_ns() // 1_000_000,
            settings=settings,
            feed=self._feed,
            alone=seat is None,
        )
        self._store = TimedStore(seat.store if seat is not None else open_store(settings))
        fence = unfenced if seat is None else self._fence
        durable = settings.store not in IN_MEMORY
        self._recorder = Recorder(self._store, settings.store_timeout_s, durable=durable, fence=fence)
        self._logs = None
        if durable and settings.log_every_s:
            every_s = settings.log_every_s
            self._logs = EntryLogs(self._store, core.restorer, self._clock, fence, every_s)
        self._hard = HardRequests(core, self._clock, self._recorder, self._logs)
        self._handler = MasterHandler(core, self._clock, self._hard)
        limits = Limits(connections_max=settings.connections_max, inflight_max=settings.inflight_max)
        self._tokens = TokenFile(settings.tokens_file) if settings.tokens_file else None
        tls = ServerTls.of(settings.tls_cert, settings.tls_key, settings.tls_ca)
        self._server = RpcServer(
            self._handler,
            decode_master_request,
            "master",
            limits,
            access=Access(self._tokens),
            tls=tls,
            spans=ServerSpans.of("master", wanted=settings.tracing),
        )
        self._rest = RestServer(settings) if settings.http_port else None

    async def start(self) -> str:
        """Loads hard state, then listens. Returns "host:port". Raises RpcFailed where the port can't be had,
        CorruptStore, and the store's errors."""
        await self._hard.load()
        host = self._settings.host
        port = await self._server.listen_tcp(host, self._settings.port)
        if self._settings.near_door:
            await self._server.listen_near(port)
        self._handler.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._handler.advertised = self._handler.address
        if self._seat is not None:
            self._handler.advertised = advertised(self._settings.advertise, self._handler.address)
        try:
            self._start_rest()
            self._start_events()
        except RpcFailed:
            await self._server.close()
            raise
        self._handler.start_ticks()
        if self._seat is not None:
            address, cores = self._handler.advertised, CoreHost(self._core, self._handler, self._hard)
            page = advertised_page(address, self.http_address)
            self._handler.serving = self._seat.join(address, cores, page)
            self._hard.cluster.follow()
        return self._handler.address

    def _fence(self, shard: int) -> list[Condition]:
        self._core.shards.get(shard)  # raises WrongShard
        return [owns(shard, self._core.shards.epoch(shard))]

    def _start_rest(self) -> None:
        if self._rest is None:
            return
        missing = missing_libraries()
        if missing:
            log.warning("no REST interface: %s not installed (extra `master`)", ", ".join(missing))
            return
        self.http_address = self._rest.start(self.parts(), self._tokens)
        log.info("REST interface at %s/api/v1, metrics at /metrics", self.http_address)

    def _start_events(self) -> None:
        if self._feed is None:
            return
        if importlib.util.find_spec("zmq") is None:
            log.warning("no KV events: pyzmq is not installed (extra `master`)")
            return
        self._events = KvEvents(self._core, self._feed, self._clock)
        guard = CurveGuard.of(self._settings)
        self._events.start(self._settings.events_host, self._settings.events_port, guard)

    def parts(self) -> MasterParts:
        """For the REST interface."""
        return MasterParts(
            self._core,
            self._handler,
            self._server.timings,
            self._clock,
            self._settings,
            self._store,
            self._hard.facts,
            self._origins,
        )

    async def close(self) -> None:
        """Gives its shards away, if it has a seat, and ends all connections."""
        await self._hard.nodes.close()
        await self._hard.cluster.close()
        if self._seat is not None:
            await self._seat.leave()
        else:
            await self._hard.flush(list(self._core.shards))
        if self._rest is not None:
            await asyncio.to_thread(self._rest.close)
        if self._events is not None:
            await self._events.close()
        self._handler.stop_ticks()
        await self._server.close()
        if self._logs is not None:
            await self._logs.close()
        await self._recorder.close()
        await self._store.close()
