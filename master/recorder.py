"""Hard state between the core and the store: loads it, and has it written before anybody is told that it holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from moonpool.master.hard_state import HardState
from moonpool.master.store.base import Changes, Condition, Delete, MetadataStore, Page, Put, Write
from moonpool.master.store.limits import COMMIT_BYTES_MAX, OPS_MAX
from moonpool.master.store.records import OF_A_SHARD, shard_prefix
from moonpool.schemas.errors import DeadlineExceeded, MoonpoolError, StaleEpoch

log = logging.getLogger(__name__)

PAGE_RECORDS = 1000
LOAD_TIMEOUT_S = 30.0
WRITES_A_COMMIT = OPS_MAX // 2
COMMIT_BYTES = COMMIT_BYTES_MAX // 2

Fence = Callable[[int], Sequence[Condition]]
"""What must hold of a shard for its owner to write (I7)."""


def unfenced(shard: int) -> Sequence[Condition]:
    """Of a master that is alone."""
    return ()


class Recorder:
    """One master's way to its store. `durable`: what it writes outlives this process."""

    def __init__(
        self, store: MetadataStore, timeout_s: float, *, durable: bool, fence: Fence = unfenced
    ) -> None:
        self.state = HardState()
        self.durable = durable
        self.failures = 0
        self._store = store
        self.timeout_s = timeout_s
        self._fence = fence
        self._tasks: set[asyncio.Task[None]] = set()
        self._later: dict[int, list[Write]] = {}

    # ------------------------------------------------------------ loading

    async def news(self, kind: str) -> tuple[list[Put | Delete], int]:
        """All records of a kind that concerns the whole cluster, after deletions of those that are no more; and the
        revision after which to `watch`, which may repeat some. Raises the store's errors."""
        found: list[Put | Delete] = []
        revisions: list[int] = []
        async for page in self._pages(kind.encode() + b"/"):
            found += [Put(record.key, record.value) for record in page.records]
            revisions.append(page.revision)
        gone = self.state.keys_of(kind) - {one.key for one in found}
        return [*map(Delete, gone), *found], min(revisions)

    def watch(self, kind: str, after_revision: int) -> AsyncIterator[Changes]:
        """See MetadataStore."""
        return self._store.watch(kind.encode() + b"/", after_revision=after_revision)

    async def own(self, shard: int) -> None:
        """What concerns one shard: to be loaded before it is served. Raises CorruptStore and the store's errors."""
        self.state.disown(shard)
        for kind in OF_A_SHARD:
            async for page in self._pages(shard_prefix(kind, shard)):
                for record in page.records:
                    self.state.put(record.key, record.value)

    async def _pages(self, prefix: bytes) -> AsyncIterator[Page]:
        after, more = b"", True
        while more:
            page = await self._store.read(
                prefix, after=after, records_max=PAGE_RECORDS, timeout_s=LOAD_TIMEOUT_S
            )
            yield page
            after, more = (page.records[-1].key if page.records else b""), page.more

    # ------------------------------------------------------------ writing

    async def record(self, writes: Sequence[Write], shard: int | None = None) -> int:
        """Returns when the store has them: the last one's revision. Raises StaleEpoch (the shard is another's now), StoreFailed,
        RpcFailed, DeadlineExceeded: then some may be there, which asking again mends."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.timeout_s
        last = 0
        for batch in batches(writes):
            conditions = () if shard is None else self._fence(shard)
            left_s = end_s - loop.time()
            if left_s <= 0:
                raise DeadlineExceeded(peer="the metadata store", what="a record", timeout_s=self.timeout_s)
            try:
                revision = await self._store.commit(batch, conditions=conditions, timeout_s=left_s)
            except MoonpoolError:
                self.failures += 1
                raise
            if revision is None:
                raise StaleEpoch(epoch=f"of shard {shard} here", current="the one in the metadata store")
            self.state.apply(batch)
            last = revision
        return last

    def record_later(self, shard: int, writes: Sequence[Write]) -> None:
        """Has them written some time: deletions whose loss costs nothing but room."""
        self._later.setdefault(shard, []).extend(writes)
        if not self._tasks and self._later[shard]:
            task = asyncio.ensure_future(self._write_later())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write_later(self) -> None:
        while self._later:
            shard, writes = self._later.popitem()
            try:
                await self.record(writes, shard)
            except MoonpoolError as error:
                log.warning("hard state of shard %d is not cleaned up: %s", shard, error)

    async def close(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def batches(writes: Sequence[Write]) -> list[list[Write]]:
    """Cut to what one commit takes."""
    found: list[list[Write]] = []
    room = 0
    for write in writes:
        size = len(write.key) + len(write.value) if isinstance(write, Put) else 0
        if not found or len(found[-1]) >= WRITES_A_COMMIT or size > room:
            found.append([])
            room = COMMIT_BYTES
        found[-1].append(write)
        room -= size
    return found
