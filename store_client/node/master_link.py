"""The node's connection to its master: announce, reports, heartbeats, Need; Drop and Check come back as pushes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import (
    CODES,
    KeyspaceUnknown,
    MoonpoolError,
    ProtocolError,
    RpcFailed,
    StaleEpoch,
    StreamGap,
)
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import (
    Announce,
    Announced,
    Check,
    Checked,
    Done,
    Drop,
    DropDone,
    Failed,
    Heartbeat,
    Hello,
    Message,
    Need,
    NodeInfo,
    RegisterKeyspace,
    Report,
    Victims,
    decode_from_master,
)
from moonpool.store_client.node.checksums import verify
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.drops import SWEEP_PAGES, hash_set
from moonpool.store_client.node.layout import epoch_seen
from moonpool.store_client.node.outlets import Outlets
from moonpool.store_client.node.reports import ReportStream
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Message)

CONNECT_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 3.0
RETRY_S = (0.1, 1.0)
PUSHES_MAX = 4096
MESSAGES_A_FLUSH = 4
"""Between them the event loop serves writers."""


class MasterLink:
    """Keeps one connection to the master, for as long as `run` runs. Event loop only, but for `kick`."""

    def __init__(
        self,
        address: str,
        info: NodeInfo,
        core: NodeCore,
        stream: ReportStream,
        outlets: Outlets,
        facts: Callable[[], dict[str, int | float]],
    ) -> None:
        self.address = address
        self.epoch = 0
        self.counters = dict.fromkeys(("connects", "drops", "stale_pushes"), 0)
        self._info = info
        self._core = core
        self._stream = stream
        self._outlets = outlets
        self._facts = facts
        self._epoch_seen = epoch_seen(core.slots.memory.buffer)
        self._connection: AsyncRpcConnection | None = None
        self._pushes: asyncio.Queue[Message] = asyncio.Queue(PUSHES_MAX)
        self._failure = ""

    @property
    def connected(self) -> bool:
        """Whether a master takes this node's reports."""
        return self._connection is not None

    # ------------------------------------------------------------ connection

    async def run(self) -> None:
        """Connects, reports and reconnects until cancelled."""
        retry_s = RETRY_S[0]
        worker = asyncio.create_task(self._work_pushes())
        loop = asyncio.get_running_loop()
        self._outlets.kick = lambda: loop.call_soon_threadsafe(self._flush)
        try:
            while True:
                try:
                    await self._serve()
                    retry_s = RETRY_S[0]
                except MoonpoolError as error:
                    self._note(str(error))
                await asyncio.sleep(retry_s * random.uniform(0.5, 1.0))
                retry_s = min(2 * retry_s, RETRY_S[1])
        finally:
            self._outlets.kick = None
            worker.cancel()
            await asyncio.wait({worker})

    def _note(self, failure: str) -> None:
        """One line for each new reason, not one a retry."""
        if failure != self._failure:
            self._failure = failure
            logger.warning("no master: %s", failure)

    async def _serve(self) -> None:
        """One connection's life. Raises MoonpoolError where it couldn't begin; a lost one returns."""
        hello = Hello(PROTOCOL_VERSION, "node", self._info.node, host=self._info.host)
        connection = await AsyncRpcConnection.connect(
            self.address, hello, decode_from_master, timeout_s=CONNECT_TIMEOUT_S, on_push=self._pushed
        )
        try:
            with self._core.lock:
                specs = self._core.keyspaces.specs()
            announce = Announce(self._info, specs, int(self._epoch_seen[0]))
            announced = _expect(await connection.call(announce, CALL_TIMEOUT_S), Announced)
            self._obey(announced.epoch)
            self._connection = connection
            with self._core.lock:
                self._stream.connect(announced.epoch)
            self.counters["connects"] += 1
            self._failure = ""
            logger.info("reporting to the master at %s, epoch %d", self.address, announced.epoch)
            self._flush()
            await self._beat(connection, announced)
        finally:
            self._connection = None
            with self._core.lock:
                self._stream.disconnect()
            await connection.close()

    def _obey(self, epoch: int) -> None:
        """Takes a master's orders from now on. Raises StaleEpoch where this segment has obeyed a newer one."""
        newest = int(self._epoch_seen[0])
        if epoch < newest:
            raise StaleEpoch(epoch=epoch, current=newest)
        self._epoch_seen[0] = self.epoch = epoch

    async def _beat(self, connection: AsyncRpcConnection, announced: Announced) -> None:
        """Heartbeats until the connection or the epoch is gone."""
        interval_s = max(0.05, announced.heartbeat_ms / 1000)
        try:
            while not connection.closed.done():
                free_bytes = self._core.slots.allocator.free_bytes
                beat = Heartbeat(self._info.segment, self.epoch, free_bytes, self._facts())
                answer = _expect(await connection.call(beat, CALL_TIMEOUT_S), Announced)
                if answer.epoch != self.epoch:
                    return
                await asyncio.wait({connection.closed}, timeout=interval_s)
            self._note(str(connection.closed.result() or "closed"))
        except MoonpoolError as error:
            self._note(str(error))

    # ------------------------------------------------------------ towards the master

    def tell_keyspace(self, spec: KeyspaceSpec) -> None:
        """Sent ahead of the first report that names it."""
        if self._connection is not None:
            with contextlib.suppress(MoonpoolError):
                self._connection.send(RegisterKeyspace(spec)).add_done_callback(_ignore)

    async def need(self, want_bytes: int) -> Victims | None:
        """What the master gives up, already out of its index. None where it can't be asked."""
        if self._connection is None:
            return None
        try:
            request = Need(self._info.segment, self.epoch, want_bytes)
            return _expect(await self._connection.call(request, CALL_TIMEOUT_S), Victims)
        except MoonpoolError as error:
            logger.warning("the master gave no space: %s", error)
            return None

    def _flush(self) -> None:
        """Sends what the window allows, a few messages at a time."""
        self._outlets.kicked = False
        for _ in range(MESSAGES_A_FLUSH):
            connection = self._connection
            if connection is None:
                return
            with self._core.lock:
                report = self._stream.next_report()
            if report is None:
                return
            try:
                sent = connection.send(report)
            except MoonpoolError as error:
                self._give_up(connection, error)
                return
            sent.add_done_callback(partial(self._answered, connection, report))
        asyncio.get_running_loop().call_soon(self._flush)

    def _answered(
        self, connection: AsyncRpcConnection, report: Report, reply: asyncio.Future[Message]
    ) -> None:
        if reply.cancelled() or reply.exception() is not None:
            return  # the connection is lost, and its owner knows
        message = reply.result()
        if isinstance(message, Done):
            with self._core.lock:
                self._stream.acknowledged(report.stream, report.sequence)
        elif isinstance(message, Failed) and CODES.get(message.code) is StreamGap:
            logger.warning("report stream %x starts again: %s", report.stream, message.message)
            with self._core.lock:
                self._stream.gap(report.stream)
        else:
            self._give_up(
                connection, RpcFailed(peer=self.address, reason=f"answered a report with {message}")
            )
            return
        if connection is self._connection:
            self._flush()

    def _give_up(self, connection: AsyncRpcConnection, error: MoonpoolError) -> None:
        """This connection is of no use: the next one announces everything again."""
        self._note(str(error))
        task = asyncio.ensure_future(connection.close())
        task.add_done_callback(_ignore)

    # ------------------------------------------------------------ from the master

    def _pushed(self, message: Message) -> None:
        if not isinstance(message, Drop | Check):
            return
        if message.epoch < int(self._epoch_seen[0]):
            self.counters["stale_pushes"] += 1
            logger.warning("refused a %s of a deposed master", type(message).__name__)
            return
        try:
            self._pushes.put_nowait(message)
        except asyncio.QueueFull:
            # What is left undone stays unconfirmed at the master, which asks again on the next connection.
            if self._connection is not None:
                self._give_up(self._connection, RpcFailed(peer=self.address, reason="too many pushes"))

    async def _work_pushes(self) -> None:
        while True:
            message = await self._pushes.get()
            try:
                if isinstance(message, Drop):
                    await self._drop(message)
                elif isinstance(message, Check):
                    await self._check(message)
            except MoonpoolError as error:
                logger.error("a %s of the master can't be obeyed: %s", type(message).__name__, error)
            except Exception:
                # A bug, or numbers that can't be: without this loop no removal would ever be obeyed again.
                logger.exception("a %s of the master failed", type(message).__name__)

    async def _check(self, check: Check) -> None:
        """Answers for the place where the object lies now: what moves it says so on the stream before we do."""
        place = (check.slot, check.generation)
        while True:
            with self._core.lock:
                slot, generation = place = self._core.drops.follow(place)
            now = msgspec.structs.replace(check, slot=slot, generation=generation)
            good = await asyncio.to_thread(verify, self._core, now)
            with self._core.lock:
                if self._core.drops.follow(place) == place:
                    self._outlets.emit(
                        Checked(check.keyspace, check.rank, check.block_hash, slot, generation, good)
                    )
                    return

    async def _drop(self, drop: Drop) -> None:
        """Flips headers, page by page where the drop is a predicate, then confirms."""
        self.counters["drops"] += 1
        with self._core.lock:
            self._core.drops.exact(drop.drops)
        if drop.whole_keyspace:
            await self._sweep(drop.keyspace, None)
        elif drop.hashes:
            try:
                hash_bytes = self._core.keyspaces.spec(drop.keyspace).hash_bytes
            except KeyspaceUnknown:
                pass  # nothing here can be of that keyspace
            else:
                await self._sweep(drop.keyspace, hash_set(drop.hashes, hash_bytes))
        if drop.epoch < self.epoch:
            return  # asked by an earlier master, and in this one's numbers it would confirm another drop
        with self._core.lock:
            self._outlets.emit(DropDone(drop.drop_id))

    async def _sweep(self, keyspace: bytes, hashes: NDArray[np.bytes_] | None) -> None:
        drops = self._core.drops
        drops.sweeps += 1
        try:
            for page in range(0, self._core.head.layout.page_count, SWEEP_PAGES):
                with self._core.lock:
                    drops.sweep(keyspace, hashes, page)
                await asyncio.sleep(0)
        finally:
            drops.sweeps -= 1


def _expect(message: Message, kind: type[Answer]) -> Answer:
    if not isinstance(message, kind):
        raise ProtocolError(
            peer="the master", reason=f"{type(message).__name__} where {kind.__name__} is due"
        )
    return message


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
