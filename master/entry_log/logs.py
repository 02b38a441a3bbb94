"""The entry logs of a master's shards: read when a shard is taken over, written behind its back ever after.

Nobody waits for a write. When the store lags, passes take longer and the log gets older; `log_lag_s` says by how much.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from moonpool.master.background import lasting
from moonpool.master.entry_log.chunk import decode_chunk
from moonpool.master.entry_log.sweep import LogSweep, keyspace_of, log_prefix
from moonpool.master.entry_log.voids import Voids, void_prefix, voided_by
from moonpool.master.recorder import Fence
from moonpool.master.restorer import Restorer
from moonpool.master.store.base import Delete, MetadataStore, Put, Record
from moonpool.schemas.clock import Clock
from moonpool.schemas.errors import CorruptStore, MoonpoolError, StaleEpoch

log = logging.getLogger(__name__)

COMMIT_BYTES = 256 << 10
COMMIT_OPS = 64
COMMIT_TIMEOUT_S = 10.0
PAGE_RECORDS = 64
READ_TIMEOUT_S = 10.0
READ_RETRY_S = 1.0
FLUSH_S = 0.5
"""How long a shard that is given away waits for its log: what is not written by then, inventories tell."""
HISTORY_S = 60.0
"""How long the store keeps what was written over: watchers that are away longer read again."""


@dataclass(slots=True)
class _Shard:
    voids: Voids
    sweep: LogSweep | None = None  # None: what an earlier owner left is being read
    written_s: float | None = None  # when the last pass began whose writes are all there
    reading: asyncio.Task[None] | None = None
    passing: asyncio.Lock = field(default_factory=asyncio.Lock)
    voiding: asyncio.Lock = field(default_factory=asyncio.Lock)


class EntryLogs:
    """To be used in one event loop. `every_s`: from the end of one pass to the next one's beginning."""

    def __init__(
        self,
        store: MetadataStore,
        restorer: Restorer,
        clock: Clock,
        fence: Fence,
        every_s: float,
        history_s: float = HISTORY_S,
    ) -> None:
        self._store = store
        self._restorer = restorer
        self._clock = clock
        self._fence = fence
        self._every_s = every_s
        self._history_s = history_s
        self._shards: dict[int, _Shard] = {}
        self._revisions: deque[tuple[float, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._hinted = 0
        self._commits = 0

    # ------------------------------------------------------------ shards

    def own(self, shard: int) -> None:
        """Reads what there is of a shard, in the background, and then goes on with it."""
        mine = self._shards[shard] = _Shard(Voids(shard))
        mine.reading = asyncio.ensure_future(self._read(shard, mine))
        if self._task is None:
            self._task = asyncio.ensure_future(lasting("entry log", self._write_forever))

    def disown(self, shard: int) -> None:
        """The log is another master's now."""
        mine = self._shards.pop(shard, None)
        if mine is not None and mine.reading is not None:
            mine.reading.cancel()

    async def close(self) -> None:
        """Ends what is under way."""
        tasks = [mine.reading for mine in self._shards.values() if mine.reading is not None]
        tasks += [self._task] if self._task is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ reading

    async def _read(self, shard: int, mine: _Shard) -> None:
        """What is there must be known in whole: a chunk that nobody writes over would come back at every take-over."""
        while mine.sweep is None:
            try:
                mine.sweep = LogSweep(shard, await self._read_all(shard, mine.voids))
            except MoonpoolError as error:
                log.warning("shard %d: its entry log can't be read, inventories will do: %s", shard, error)
                await asyncio.sleep(READ_RETRY_S)

    async def _read_all(self, shard: int, voids: Voids) -> list[bytes]:
        """Takes the hints. Returns the keys of all chunks."""
        voids.found([voided_by(record.key) async for record in self._records(void_prefix(shard))])
        keys: list[bytes] = []
        async for record in self._records(log_prefix(shard)):
            self._hint(shard, record.key, record.value, voids)
            keys.append(record.key)
            await asyncio.sleep(0)  # requests go first
        if keys:
            log.info("shard %d: %d records of its entry log were read", shard, len(keys))
        return keys

    async def _records(self, prefix: bytes) -> AsyncIterator[Record]:
        after, more = b"", True
        while more:
            page = await self._store.read(
                prefix, after=after, records_max=PAGE_RECORDS, timeout_s=READ_TIMEOUT_S
            )
            for record in page.records:
                yield record
            after, more = (page.records[-1].key if page.records else b""), page.more

    def _hint(self, shard: int, key: bytes, value: bytes, voids: Voids) -> None:
        try:
            keyspace = keyspace_of(key)
            table = self._restorer.table(shard, keyspace)
            if table is None:
                return
            now_s = self._clock.now_s()
            for part in decode_chunk(value, table.spec):
                self._restorer.remember(part.segment, part.node, now_s)
                if keyspace in voids.unheeded:
                    continue
                self._hinted += self._restorer.hint(shard, part.segment, part.entries, now_s)
        except (CorruptStore, ValueError, IndexError) as error:
            log.warning("%r is no record of the entry log: %s", key, error)

    # ------------------------------------------------------------ removals

    def removed(self, keyspace: bytes, shards: Iterable[int]) -> list[int]:
        """Rows of these shards have just left the index, or are about to: hints of them don't count any more. Returns
        the shards whose `void` must come before the acknowledgement."""
        owned = [shard for shard in shards if shard in self._shards]
        for shard in owned:
            self._shards[shard].voids.removed(keyspace)
        return [shard for shard in owned if not self._shards[shard].voids.holds(keyspace)]

    async def void(self, keyspace: bytes, shards: Iterable[int], timeout_s: float) -> None:
        """Returns when no later owner of these shards can take the log's word for what was removed. Raises StaleEpoch,
        and the store's errors: then it may come back at a take-over."""
        await asyncio.gather(*(self._void(keyspace, shard, timeout_s) for shard in shards))

    async def _void(self, keyspace: bytes, shard: int, timeout_s: float) -> None:
        mine = self._shards.get(shard)
        if mine is None:
            raise StaleEpoch(epoch=f"of shard {shard} here", current="another owner's")
        async with mine.voiding:
            if mine.voids.holds(keyspace):
                return  # another removal has had it written
            put, conditions = mine.voids.put(keyspace), self._fence(shard)
            if await self._store.commit([put], conditions=conditions, timeout_s=timeout_s) is None:
                raise StaleEpoch(epoch=f"of shard {shard} here", current="the one in the metadata store")
            mine.voids.held(keyspace)

    async def _take_back(self, shard: int, mine: _Shard, covered: set[bytes]) -> None:
        """A pass has ended that saw all that had been removed from these keyspaces before it began."""
        async with mine.voiding:
            deletes = mine.voids.end_pass(covered)
            for first in range(0, len(deletes), COMMIT_OPS):
                some = deletes[first : first + COMMIT_OPS]
                if await self._commit_all(shard, some) is None:
                    return
                mine.voids.taken_back(some)

    # ------------------------------------------------------------ writing

    async def _write_forever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            for shard, mine in list(self._shards.items()):
                await self._write(shard, mine)
            await self._forget_history()

    async def flush(self, shards: Iterable[int]) -> None:
        """Has the newest rows of shards written that are about to be given away; ends within FLUSH_S."""
        passes = [self._write(shard, self._shards[shard], 0.0) for shard in shards if shard in self._shards]
        try:
            async with asyncio.timeout(FLUSH_S):
                await asyncio.gather(*passes)
        except TimeoutError:
            log.warning("a shard is given away before its entry log is up to date")

    async def _write(self, shard: int, mine: _Shard, rest: float = 1.0) -> None:
        """One pass. `rest`: for each second of the store's time, so many are left to others."""
        # Before the inventories are there the log knows more than the index.
        if mine.sweep is None or not self._restorer.recovered(shard):
            return
        try:
            async with mine.passing:
                await self._pass(shard, mine, mine.sweep, rest)
        except MoonpoolError as error:
            self._failures += 1
            log.warning("shard %d: its entry log gets older: %s", shard, error)

    async def _pass(self, shard: int, mine: _Shard, sweep: LogSweep, rest: float) -> None:
        began_s = self._clock.now_s()
        tables = self._restorer.tables(shard)
        covered = mine.voids.begin_pass([table.keyspace for table in tables if table.doomed])
        sweep.begin(tables)
        batch: list[tuple[Put | Delete, int]] = []
        size = 0
        while sweep.passing and shard in self._shards:
            found = sweep.step(lambda keyspace: self._restorer.table(shard, keyspace), self._restorer.name_of)
            if found is not None:
                batch.append(found)
                size += len(found[0].value) if isinstance(found[0], Put) else 0
            if size >= COMMIT_BYTES or len(batch) >= COMMIT_OPS:
                await self._commit(shard, sweep, batch, rest)
                batch, size = [], 0
            await asyncio.sleep(0)  # requests go first
        await self._commit(shard, sweep, batch, rest)
        if self._shards.get(shard) is mine:
            await self._take_back(shard, mine, covered)
        sweep.end()
        mine.written_s = began_s

    async def _commit(
        self, shard: int, sweep: LogSweep, batch: list[tuple[Put | Delete, int]], rest: float
    ) -> None:
        if not batch:
            return
        began_s = self._clock.now_s()
        if await self._commit_all(shard, [write for write, _ in batch]) is None:
            return
        for write, checksum in batch:
            sweep.wrote(write, checksum)
        await asyncio.sleep(rest * (self._clock.now_s() - began_s))

    async def _commit_all(self, shard: int, writes: Sequence[Put | Delete]) -> int | None:
        began_s = self._clock.now_s()
        revision = await self._store.commit(writes, conditions=self._fence(shard), timeout_s=COMMIT_TIMEOUT_S)
        if revision is None:  # another's log now: the membership will say so
            self._shards.pop(shard, None)
            return None
        self._commits += 1
        self._revisions.append((began_s, revision))
        return revision

    async def _forget_history(self) -> None:
        """All that was written over stays in etcd until it is told to forget it."""
        old = 0
        while self._revisions and self._revisions[0][0] <= self._clock.now_s() - self._history_s:
            old = self._revisions.popleft()[1]
        if old:
            try:
                await self._store.compact(old, timeout_s=COMMIT_TIMEOUT_S)
            except MoonpoolError as error:
                self._failures += 1
                log.warning("the metadata store keeps its history: %s", error)

    # ------------------------------------------------------------ facts

    def facts(self) -> dict[str, int | float]:
        """`log_lag_s`: age of the oldest shard's log; `shards_recovering`: those whose log or inventories are not all
        there yet."""
        now_s = self._clock.now_s()
        written = [mine.written_s for mine in self._shards.values()]
        return {
            "log_lag_s": round(
                max((now_s - (one or 0.0) for one in written if one is not None), default=0.0), 3
            ),
            "log_shards_unwritten": sum(one is None for one in written),
            "log_records_behind": sum(one.sweep.behind for one in self._shards.values() if one.sweep),
            "log_commits": self._commits,
            "log_failures": self._failures,
            "log_hints": self._hinted,
            "log_shards_read": sum(mine.sweep is not None for mine in self._shards.values()),
            "shards_recovering": sum(
                mine.sweep is None or not self._restorer.recovered(shard)
                for shard, mine in self._shards.items()
            ),
        }
