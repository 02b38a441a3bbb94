"""A store whose reads and commits are timed: how the metadata store does, as its master sees it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from moonpool.master.store.base import Changes, Condition, MetadataStore, Page, Write
from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.histogram import Log2Histogram

UNIT_S = 64e-6
BUCKETS = 20  # up to 17 s, and the rest
CALLS = ("read", "commit")


class TimedStore:
    """Another store, with its times."""

    def __init__(self, store: MetadataStore) -> None:
        self.times = {call: Log2Histogram(UNIT_S, BUCKETS) for call in CALLS}
        self.failures = dict.fromkeys(CALLS, 0)
        self._store = store

    async def read(
        self, prefix: bytes, *, after: bytes = b"", records_max: int = 1000, timeout_s: float
    ) -> Page:
        """See MetadataStore."""
        with self._timed("read"):
            return await self._store.read(prefix, after=after, records_max=records_max, timeout_s=timeout_s)

    async def commit(
        self, writes: Sequence[Write], *, conditions: Sequence[Condition] = (), timeout_s: float
    ) -> int | None:
        """See MetadataStore."""
        with self._timed("commit"):
            return await self._store.commit(writes, conditions=conditions, timeout_s=timeout_s)

    async def grant(self, ttl_s: float, *, timeout_s: float) -> int:
        """See MetadataStore."""
        return await self._store.grant(ttl_s, timeout_s=timeout_s)

    async def keep_alive(self, lease: int, *, timeout_s: float) -> float:
        """See MetadataStore."""
        return await self._store.keep_alive(lease, timeout_s=timeout_s)

    async def revoke(self, lease: int, *, timeout_s: float) -> None:
        """See MetadataStore."""
        await self._store.revoke(lease, timeout_s=timeout_s)

    def watch(self, prefix: bytes, *, after_revision: int) -> AsyncIterator[Changes]:
        """See MetadataStore."""
        return self._store.watch(prefix, after_revision=after_revision)

    async def compact(self, revision: int, *, timeout_s: float) -> None:
        """See MetadataStore."""
        await self._store.compact(revision, timeout_s=timeout_s)

    async def close(self) -> None:
        """See MetadataStore."""
        await self._store.close()

    @contextmanager
    def _timed(self, call: str) -> Iterator[None]:
        start_s = time.monotonic()
        try:
            yield
        except MoonpoolError:
            self.failures[call] += 1
            raise
        finally:
            self.times[call].add(time.monotonic() - start_s)
