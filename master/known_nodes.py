"""Segments that any master of the cluster has heard of, as the store has them: a removal must reach them all, those too
that haven't announced themselves to the master that is asked for it."""

from __future__ import annotations

import asyncio
import logging
import math

from moonpool.master.cluster_wide import ClusterWide
from moonpool.master.core import MasterCore
from moonpool.master.nodes import LOST_MEMORY_S, READABLE
from moonpool.master.recorder import Recorder
from moonpool.master.store.base import Delete, Put, Write
from moonpool.master.store.records import NodeRecord, encode, node_key
from moonpool.schemas.errors import MoonpoolError

log = logging.getLogger(__name__)

FORGET_S = LOST_MEMORY_S
"""A recorded segment that this master has not heard of for so long is gone."""


class KnownNodes:
    """To be used in one event loop. Nobody waits for what it writes: while the store is away nothing is taken over."""

    def __init__(self, core: MasterCore, cluster: ClusterWide, recorder: Recorder) -> None:
        self._core = core
        self._cluster = cluster
        self._recorder = recorder
        self._state = recorder.state
        self._missed_s: dict[bytes, float] = {}
        """Recorded segments that the core doesn't know, and since when."""
        self._gone: list[bytes] = []
        self._writing: asyncio.Task[None] | None = None

    def unheard(self) -> dict[bytes, str]:
        """Recorded segments, by name of their nodes, that have not announced themselves here."""
        known = {node.info.segment for node in self._core.look.nodes()}
        return {segment: name for segment, name in self._state.nodes.items() if segment not in known}

    def look(self, now_s: float = -math.inf) -> None:
        """Has the store know who is here, and, where `now_s` is given, who has been away for long."""
        if now_s > 0:
            self._missed_s = {one: self._missed_s.get(one, now_s) for one in self.unheard()}
            self._gone = [one for one, since_s in self._missed_s.items() if since_s < now_s - FORGET_S]
        if self._recorder.durable and (self._writing is None or self._writing.done()):
            self._writing = asyncio.ensure_future(self._write())

    def _due(self) -> list[Write]:
        recorded = self._state.nodes
        here = [node.info for node in self._core.look.nodes() if node.state in READABLE]
        fresh = [info for info in here if info.segment not in recorded]
        gone, self._gone = [one for one in self._gone if one in recorded], []
        return [
            *(Put(node_key(info.segment), encode(NodeRecord(info.node))) for info in fresh),
            *(Delete(node_key(segment)) for segment in gone),
        ]

    async def _write(self) -> None:
        try:
            while writes := self._due():
                await self._cluster.record(writes)
        except MoonpoolError as error:  # the next look tries again
            log.warning("nodes are not recorded: %s", error)

    async def close(self) -> None:
        """Ends what is under way."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
