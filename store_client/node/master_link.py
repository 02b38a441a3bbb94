"""The node's connection to one master: announce, reports, heartbeats, Need; Drop and Check come back as pushes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from functools import partial
from typing import Any, TypeVar

import msgspec

from moonpool.schemas.errors import (
    CODES,
    MoonpoolError,
    ProtocolError,
    RpcFailed,
    StaleEpoch,
    StreamGap,
    WrongShard,
)
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import (
    Announce,
    Announced,
    Check,
    CopyOrder,
    Done,
    Drop,
    Failed,
    Heartbeat,
    Hello,
    Message,
    Need,
    Refused,
    RegisterKeyspace,
    Report,
    Victims,
    decode_from_master,
)
from moonpool.schemas.packed import u64s
from moonpool.schemas.runs import SHARDS_MAX
from moonpool.store_client.node.orders import Reporter, obey_check, obey_drop
from moonpool.store_client.node.pushes import Pushes
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Message)

CONNECT_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 3.0
RETRY_S = (0.1, 1.0)
RETRY_GROWTH = 1.25
"""A master that starts again is found within a quarter of the time that it was away."""

MESSAGES_A_FLUSH = 4
"""Between them the event loop serves writers."""


class MasterLink:
    """Keeps one connection to a master, for as long as `run` runs. Event loop only."""

    COUNTERS = ("connects", "drops", "stale_pushes")

    def __init__(self, address: str, reporter: Reporter) -> None:
        self.address = address
        self.epoch = 0
        self.counters = dict.fromkeys(self.COUNTERS, 0)
        self.masters: list[str] = []
        """All masters, as this one says."""
        self._shared = reporter
        self._info = reporter.info
        self._core = reporter.core
        self._fences = reporter.fences
        self._connection: AsyncRpcConnection | None = None
        self._pushes = Pushes(reporter.core)
        self._failure = ""
        self._turn = 0
        self.heard_first = False
        """Whether the master takes in what was sent to it before it answers anybody."""

    @property
    def connected(self) -> bool:
        """Whether a master takes this node's reports."""
        return self._connection is not None

    # ------------------------------------------------------------ connection

    async def run(self) -> None:
        """Connects, reports and reconnects until cancelled."""
        retry_s = RETRY_S[0]
        worker = asyncio.create_task(self._work_pushes())
        try:
            while True:
                try:
                    await self._serve()
                    retry_s = RETRY_S[0]
                except MoonpoolError as error:
                    self._note(str(error))
                await asyncio.sleep(retry_s * random.uniform(0.5, 1.0))
                retry_s = min(RETRY_GROWTH * retry_s, RETRY_S[1])
        finally:
            worker.cancel()
            await asyncio.wait({worker})
            self._pushes.clear()

    def _note(self, failure: str) -> None:
        """One line for each new reason, not one a retry."""
        if failure != self._failure:
            self._failure = failure
            logger.warning("no reports to the master at %s: %s", self.address, failure)

    async def _serve(self) -> None:
        """One connection's life. Raises MoonpoolError where it couldn't begin; a lost one returns."""
        hello = Hello(PROTOCOL_VERSION, "node", self._info.node, host=self._info.host)
        connection = await AsyncRpcConnection.connect(
            self.address,
            hello,
            decode_from_master,
            timeout_s=CONNECT_TIMEOUT_S,
            on_push=self._pushed,
            credentials=self._shared.credentials,
        )
        try:
            with self._core.lock:
                specs = self._core.keyspaces.specs()
            announce = Announce(self._info, specs, self._fences.newest)
            announced = _expect(await connection.call(announce, CALL_TIMEOUT_S), Announced)
            self.epoch = announced.epoch
            self._connection = connection
            self._obey(announced)
            self.counters["connects"] += 1
            self._failure = ""
            logger.info("reporting to the master at %s, epoch %d", self.address, announced.epoch)
            self.flush()
            await self._beat(connection, announced)
        finally:
            self._connection = None
            self._hear_first(False)
            with self._core.lock:
                for shard in self._fences.gone(self.address):
                    self._shared.streams.of(shard).disconnect()
                    self._shared.copies.cancel(shard)  # a removal of these blocks would not be heard of
            await connection.close()

    def _obey(self, announced: Announced) -> None:
        """Reports to the master, from now on, on the shards that it owns. Raises StaleEpoch where this segment has
        obeyed newer owners of all that it claims, ProtocolError for numbers that can't be."""
        if not 1 <= announced.shards <= SHARDS_MAX:
            raise ProtocolError(peer=self.address, reason=f"announces {announced.shards} shards")
        with self._core.lock:
            self._core.use_shards(announced.shards)
            self._shared.streams.use_shards(announced.shards)
            change = self._fences.claimed(self.address, announced.claims)
            for shard in change.lost:
                self._shared.streams.of(shard).disconnect()
            for shard, epoch in change.taken:
                stream = self._shared.streams.of(shard)
                stream.disconnect()  # from whom it reported to before
                stream.connect(epoch)
        if announced.claims and not self._fences.owned_by(self.address):
            newest = max(epoch for _, epoch in announced.claims)
            raise StaleEpoch(epoch=newest, current=self._fences.newest)
        self.masters = announced.masters
        self._shared.heard(announced.masters)
        self._hear_first(announced.heard_first)

    def _hear_first(self, yes: bool) -> None:
        self.heard_first = yes
        self._shared.want_names(self.address, yes)

    async def _beat(self, connection: AsyncRpcConnection, announced: Announced) -> None:
        """Heartbeats until the connection or the epoch is gone."""
        interval_s = max(0.05, announced.heartbeat_ms / 1000)
        try:
            while not connection.closed.done():
                answer = _expect(await connection.call(self._heartbeat(), CALL_TIMEOUT_S), Announced)
                if answer.epoch != self.epoch:
                    return
                self._obey(answer)
                self.flush()
                await asyncio.wait({connection.closed}, timeout=interval_s)
            self._note(str(connection.closed.result() or "closed"))
        except MoonpoolError as error:
            self._note(str(error))

    def _heartbeat(self) -> Heartbeat:
        free_bytes = self._core.slots.allocator.free_bytes
        return Heartbeat(self._info.segment, self.epoch, free_bytes, self._shared.facts(), self.heard_first)

    # ------------------------------------------------------------ towards the master

    def tell_keyspace(self, spec: KeyspaceSpec) -> None:
        """Sent ahead of the first report that names it."""
        if self._connection is not None:
            with contextlib.suppress(MoonpoolError):
                self._connection.send(RegisterKeyspace(spec)).add_done_callback(_ignore)

    async def need(self, want_bytes: int) -> Victims | None:
        """What the master gives up, already out of its index. None where it can't be asked. An answer that comes too late is
        obeyed all the same: nobody else will name those slots. Of shards that are another master's by now nothing is dropped."""
        if self._connection is None:
            return None
        try:
            need = Need(self._info.segment, self.epoch, want_bytes)
            answer = await self._connection.call(need, CALL_TIMEOUT_S, self._came_late)
            return self._fresh(_expect(answer, Victims))
        except MoonpoolError as error:
            logger.warning("the master at %s gave no space: %s", self.address, error)
            return None

    def _came_late(self, reply: Message) -> None:
        if isinstance(reply, Victims):
            with contextlib.suppress(MoonpoolError), self._core.lock:
                self._core.drops.exact(self._fresh(reply).drops)

    def _fresh(self, victims: Victims) -> Victims:
        fresh = {shard for shard, epoch in victims.claims if self._fences.fresh(shard, epoch)}
        return msgspec.structs.replace(victims, drops=[one for one in victims.drops if one.shard in fresh])

    def flush(self) -> None:
        """Sends what the windows allow, a few messages at a time."""
        for _ in range(MESSAGES_A_FLUSH):
            connection = self._connection
            if connection is None or not self._shared.streams.news:
                return
            with self._core.lock:  # which whoever is told of what was sent expects
                report = self._next_report()
                if report is None or not self._ask(connection, report):
                    return
        asyncio.get_running_loop().call_soon(self.flush)

    def send(self, shard: int) -> bool:
        """Sends the next message of one of its shards, if there is one. Returns whether it did. Under the node's lock."""
        connection = self._connection
        report = self._shared.streams.of(shard).next_report() if connection is not None else None
        return connection is not None and report is not None and self._ask(connection, report)

    def _ask(self, connection: AsyncRpcConnection, report: Report) -> bool:
        try:
            connection.ask(report, partial(self._answered, connection, report))
        except MoonpoolError as error:
            self._give_up(connection, error)
            return False
        if self.heard_first and connection.all_sent:
            self._shared.streams.of(report.shard).heard(report.stream, report.sequence)
        return True

    def _next_report(self) -> Report | None:
        """Of the streams in turn: no shard waits for the inventory of another."""
        shards = self._fences.owned_by(self.address)
        for _ in shards:
            self._turn = (self._turn + 1) % len(shards)
            report = self._shared.streams.of(shards[self._turn]).next_report()
            if report is not None:
                return report
        return None

    def _answered(
        self, connection: AsyncRpcConnection, report: Report, message: Message | MoonpoolError
    ) -> None:
        if isinstance(message, MoonpoolError):
            return  # the connection is lost, and its owner knows
        stream = self._shared.streams.of(report.shard)
        if type(message) is Done:  # the usual case
            with self._core.lock:
                stream.acknowledged(report.stream, report.sequence)
            if connection is self._connection and self._shared.streams.news:
                self.flush()
            return
        kind = CODES.get(message.code) if isinstance(message, Failed) else None
        if isinstance(message, Refused) and len(message.generations) == 8 * len(message.answers):
            surplus = dict(zip(u64s(message.generations).tolist(), message.answers, strict=True))
            with self._core.lock:
                stream.acknowledged(report.stream, report.sequence, surplus)
        elif isinstance(message, Failed) and kind is StreamGap:
            logger.warning(
                "report stream %x of shard %d starts again: %s",
                report.stream,
                report.shard,
                message.message,
            )
            with self._core.lock:
                stream.gap(report.stream)
        elif kind is WrongShard:  # it has changed hands: its new owner will claim it
            with self._core.lock:  # unless it has claimed it again meanwhile: this answers an earlier stream
                if stream.is_current(report.stream) and self._fences.release(self.address, report.shard):
                    stream.disconnect()
        else:
            self._give_up(
                connection, RpcFailed(peer=self.address, reason=f"answered a report with {message}")
            )
            return
        if connection is self._connection and self._shared.streams.news:
            self.flush()

    def _give_up(self, connection: AsyncRpcConnection, error: MoonpoolError) -> None:
        """This connection is of no use: the next one announces everything again."""
        self._note(str(error))
        task = asyncio.ensure_future(connection.close())
        task.add_done_callback(_ignore)

    # ------------------------------------------------------------ from the master

    def _pushed(self, message: Message) -> None:
        if isinstance(message, Announced):
            self._claims_changed(message)
            return
        if not isinstance(message, Drop | Check | CopyOrder):
            return
        if not self._fences.fresh(message.shard, message.epoch):
            self.counters["stale_pushes"] += 1
            logger.warning("refused a %s of a deposed master", type(message).__name__)
            return
        if isinstance(message, CopyOrder):
            self._shared.copies.offer(message)
            return
        try:
            self._pushes.put(message)
        except asyncio.QueueFull:
            # What is left undone stays unconfirmed at the master, which asks again on the next connection.
            if self._connection is not None:
                self._give_up(self._connection, RpcFailed(peer=self.address, reason="too many pushes"))

    def _claims_changed(self, announced: Announced) -> None:
        """A shard has changed hands: not to wait for the next heartbeat keeps the pause short."""
        if self._connection is None or announced.epoch != self.epoch:
            return
        relied = self.heard_first
        try:
            self._obey(announced)
            if relied and not self.heard_first:  # another node waits until the master knows that we know
                self._connection.send(self._heartbeat()).add_done_callback(_ignore)
        except MoonpoolError as error:
            self._give_up(self._connection, error)
        else:
            self.flush()

    async def _work_pushes(self) -> None:
        while True:
            message = await self._pushes.get()
            try:
                if isinstance(message, Drop):
                    self.counters["drops"] += 1
                    await obey_drop(message, self._shared)
                else:
                    await obey_check(message, self._shared)
            except MoonpoolError as error:
                logger.error("a %s of the master can't be obeyed: %s", type(message).__name__, error)
            except Exception:
                # A bug, or numbers that can't be: without this loop no removal would ever be obeyed again.
                logger.exception("a %s of the master failed", type(message).__name__)
            finally:
                self._pushes.done(message)


def _expect(message: Message, kind: type[Answer]) -> Answer:
    if not isinstance(message, kind):
        raise ProtocolError(
            peer="the master", reason=f"{type(message).__name__} where {kind.__name__} is due"
        )
    return message


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
