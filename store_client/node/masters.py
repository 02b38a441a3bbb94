"""All masters that a node reports to: found through any of them, one link each."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import replace

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import ClusterMap, GetClusterMap, Hello, Victims, decode_from_master
from moonpool.store_client.directory import Directory
from moonpool.store_client.node.master_link import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, MasterLink
from moonpool.store_client.node.need_merge import ROUNDS_MAX, NeedMerge
from moonpool.store_client.node.orders import Reporter
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection

logger = logging.getLogger(__name__)

LOST_TOUCH_S = 1.0
"""Without any master for so long, those that the settings name are asked again who there is."""

MASTERS_MAX = 64


class Masters:
    """Event loop only, but for `kick`. A master names all others in each answer to a heartbeat; so the set of links
    follows the cluster, and the settings need to name one that lives."""

    def __init__(self, directory: Directory, reporter: Reporter) -> None:
        self._directory = directory
        self._reporter = replace(reporter, heard=self._heard)
        self._links: dict[str, MasterLink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._wanted: list[str] = []
        self._merge = NeedMerge()
        self._failure = ""
        self._past = dict.fromkeys(MasterLink.COUNTERS, 0)
        """Counters of links that are no more."""

    @property
    def links(self) -> list[MasterLink]:
        """One for each known master."""
        return list(self._links.values())

    @property
    def connected(self) -> int:
        """Masters that take this node's reports."""
        return sum(link.connected for link in self._links.values())

    @property
    def hearing_first(self) -> int:
        """Masters that take in this node's reports before they answer anybody."""
        return sum(link.heard_first for link in self._links.values())

    # ------------------------------------------------------------ the set of links

    async def run(self) -> None:
        """Reports until cancelled."""
        loop = asyncio.get_running_loop()
        outlets = self._reporter.outlets
        here = threading.get_ident()

        def kick() -> None:
            if threading.get_ident() == here:  # without a system call, and before anything else is read
                loop.call_soon(self._flush)
            else:
                loop.call_soon_threadsafe(self._flush)

        def send(shard: int) -> bool:
            return threading.get_ident() == here and self._send(shard)

        outlets.kick, outlets.send = kick, send
        try:
            while True:
                if not self.connected:
                    self._wanted = await self._discover() or self._wanted or self._directory.names
                await self._follow()
                self._changed.clear()
                try:
                    await asyncio.wait_for(self._changed.wait(), LOST_TOUCH_S)
                except TimeoutError:
                    continue
        finally:
            outlets.kick, outlets.send = None, lambda shard: False
            self._wanted = []
            await self._follow()

    async def _follow(self) -> None:
        """Ends the links that nobody names any more, then begins the new ones: a master keeps one connection a
        segment, and may have been reached by another name. One that has failed by a bug is begun anew."""
        for address, task in self._tasks.items():
            if task.done() and not task.cancelled():
                logger.error("the link to %s failed", address, exc_info=task.exception())
        failed = {address for address, task in self._tasks.items() if task.done()}
        ended = [address for address in self._links if address not in self._wanted or address in failed]
        for address in ended:
            self._tasks[address].cancel()
        if ended:
            await asyncio.wait([self._tasks.pop(address) for address in ended])
        for address in ended:
            for name, count in self._links.pop(address).counters.items():
                self._past[name] += count
        for address in self._wanted:
            if address not in self._links:
                link = self._links[address] = MasterLink(address, self._reporter)
                self._tasks[address] = asyncio.create_task(link.run())

    def _heard(self, masters: list[str]) -> None:
        named = {name for link in self._links.values() if link.connected for name in link.masters}
        wanted = sorted(named)[:MASTERS_MAX]
        if wanted and wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def _discover(self) -> list[str]:
        """The masters, as the first of the seeds that answers knows them."""
        info = self._reporter.info
        hello = Hello(PROTOCOL_VERSION, "node", info.node, host=info.host)
        seeds = self._directory.names
        if self._directory.asks:
            try:
                deadline_s = time.monotonic() + CALL_TIMEOUT_S
                found = await asyncio.to_thread(self._directory.find, deadline_s)
                self._failure = ""
                return found[:MASTERS_MAX]
            except MoonpoolError as error:
                if str(error) != self._failure:  # one line for each new reason, not one a second
                    self._failure = str(error)
                    logger.warning("no masters found: %s", error)
        for seed in seeds:
            try:
                connection = await AsyncRpcConnection.connect(
                    seed, hello, decode_from_master, timeout_s=CONNECT_TIMEOUT_S
                )
                try:
                    cluster = await connection.call(GetClusterMap(), CALL_TIMEOUT_S)
                finally:
                    await connection.close()
            except MoonpoolError as error:
                logger.debug("no cluster map from %s: %s", seed, error)
                continue
            if isinstance(cluster, ClusterMap):
                # One that is alone is reached by the name that we know.
                return sorted(cluster.masters)[:MASTERS_MAX] if len(cluster.masters) > 1 else [seed]
        return []

    # ------------------------------------------------------------ what goes to all, or to some

    def _send(self, shard: int) -> bool:
        """Reports what a shard's stream has to tell, now. Under the node's lock."""
        link = self._links.get(self._reporter.fences.owner(shard) or "")
        return link is not None and link.send(shard)

    def _flush(self) -> None:
        self._reporter.outlets.kicked = False
        for link in self._links.values():
            link.flush()

    def tell_keyspace(self, spec: KeyspaceSpec) -> None:
        """Sent ahead of the first report that names it."""
        for link in self._links.values():
            link.tell_keyspace(spec)

    async def need(self, want_bytes: int) -> Victims | None:
        """What the masters give up, the oldest first, already out of their indexes. None where none can be asked."""
        asked = {link.address: link for link in self._links.values() if link.connected}
        self._merge.begin(list(asked))
        whole: Victims | None = None
        left_bytes = want_bytes
        for _ in range(ROUNDS_MAX):
            chosen = self._merge.choose(list(asked), want_bytes, left_bytes)
            if chosen is None or left_bytes <= 0:
                break
            address, piece_bytes = chosen
            victims = await asked[address].need(piece_bytes)
            if victims is None:
                del asked[address]
                continue
            self._merge.answered(address, victims.next_age_ms, time.monotonic())
            left_bytes -= victims.freed_bytes
            drops = [*(whole.drops if whole else ()), *victims.drops]
            whole = Victims(drops, want_bytes - left_bytes, victims.next_age_ms)
            if len(asked) == 1:
                break
        return whole

    @property
    def counters(self) -> dict[str, int]:
        """Of all links, past ones too."""
        return {
            name: past + sum(link.counters[name] for link in self._links.values())
            for name, past in self._past.items()
        }
