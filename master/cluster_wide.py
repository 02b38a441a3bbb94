"""What is recorded for the whole cluster, in the core of every master, whichever of them recorded it: keyspaces,
quotas of tenants, drains, replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial

from moonpool.master.background import lasting
from moonpool.master.core import MasterCore, Origin
from moonpool.master.recorder import Recorder
from moonpool.master.store.base import Changes, Delete, DeletePrefix, Put, Write
from moonpool.master.store.records import CLUSTER_WIDE
from moonpool.schemas.clock import Clock
from moonpool.schemas.errors import Compacted, CorruptStore, MoonpoolError
from moonpool.schemas.messages import RegisterKeyspace

log = logging.getLogger(__name__)

RETRY_S = 0.5


class ClusterWide:
    """To be used in one event loop."""

    def __init__(self, core: MasterCore, clock: Clock, recorder: Recorder) -> None:
        self._core = core
        self._clock = clock
        self._recorder = recorder
        self._state = recorder.state
        self._reading = asyncio.Lock()
        self._read_s = 0.0
        """When the last whole reading began."""
        self._ours: dict[bytes, int] = {}
        """Keys that we wrote, and when, until we hear of it: older news of them are not to undo it."""
        self._watching: list[asyncio.Task[None]] = []

    async def refresh(self) -> None:
        """All that was recorded before this call is in the core when it returns. Raises CorruptStore and the
        store's errors."""
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        async with self._reading:
            if self._read_s >= asked_s:
                return  # many shards that are taken at once need one reading
            began_s = loop.time()
            for kind in CLUSTER_WIDE:
                changes, revision = await self._recorder.news(kind)
                self._learn(changes, revision)
            self._read_s = began_s

    async def record(self, writes: Sequence[Write]) -> None:
        """Returns when the store has them, and the core. Raises the store's errors: then the core is as before."""
        try:
            revision = await self._recorder.record(writes)
        except MoonpoolError:
            self._teach(writes)
            raise
        if self._watching:
            self._ours |= {one.key: revision for one in writes if not isinstance(one, DeletePrefix)}
        self._teach(writes)

    # ------------------------------------------------------------ other masters

    def follow(self) -> None:
        """What others record is learned as it happens, from now on."""
        self._watching = [
            asyncio.ensure_future(lasting(f"records of {kind}", partial(self._follow, kind)))
            for kind in CLUSTER_WIDE
        ]

    async def close(self) -> None:
        """The reverse."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    async def _follow(self, kind: str) -> None:
        failure = ""
        while True:
            try:
                changes, revision = await self._recorder.news(kind)
                self._learn(changes, revision)
                async for found in self._recorder.watch(kind, revision):
                    self._hear(found)
            except Compacted:
                continue
            except MoonpoolError as error:
                if str(error) != failure:
                    failure = str(error)
                    log.warning("records of %s: %s", kind, error)
                await asyncio.sleep(RETRY_S)

    def _hear(self, found: Changes) -> None:
        changes = [Put(record.key, record.value) for record in found.puts]
        self._learn([*changes, *map(Delete, found.deletes)], found.revision)

    def _learn(self, changes: Iterable[Put | Delete], revision: int) -> None:
        """Raises CorruptStore, for the first one that can't be read, after all others."""
        corrupt: CorruptStore | None = None
        for change in changes:
            ours = self._ours.get(change.key, 0)
            if revision < ours:
                continue
            self._ours.pop(change.key, None)
            try:
                self._state.apply([change])
            except CorruptStore as error:
                corrupt = corrupt or error
            self._teach([change])
        if corrupt is not None:
            raise corrupt

    # ------------------------------------------------------------ the core

    def _teach(self, writes: Iterable[Write]) -> None:
        """Has the core be as the records of these keys say."""
        for write in writes:
            if isinstance(write, DeletePrefix):
                continue
            kind, _, name = write.key.decode().partition("/")
            try:
                if kind == "keyspaces":
                    self._register(bytes.fromhex(name))
                elif kind == "tenants":
                    record = self._state.tenants.get(name)
                    self._core.tenants.recorded(name, None if record is None else record.quota_bytes)
                elif kind == "replicas":
                    keyspace = bytes.fromhex(name)
                    self._core.replication.recorded(keyspace, self._state.replicas.get(keyspace, 1))
                elif kind == "drains":
                    self._core.restorer.remember_drain(name, name in self._state.drains)
            except MoonpoolError as error:
                log.warning("what is recorded of %s can't be: %s", write.key, error)

    def _register(self, keyspace: bytes) -> None:
        spec = self._state.keyspaces.get(keyspace)
        if spec is not None:  # one that is recorded no more is forgotten where room is needed
            self._core.handle(RegisterKeyspace(spec), self._clock.now_s(), Origin("", spec.tenant))
