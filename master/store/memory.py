"""Hard state that lives as long as its process: for tests, and for pools whose loss costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from moonpool.master.store.base import Changes, Condition, Page, Write
from moonpool.master.store.limits import check_commit
from moonpool.master.store.tree import RecordTree
from moonpool.schemas.clock import Clock, MonotonicClock
from moonpool.schemas.errors import Closed


class MemoryStore:
    """A MetadataStore. Several masters in one event loop may share it. Leases end by the clock, at the next call
    or while somebody watches."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._tree = RecordTree()
        self._closed = False
        self._changed = asyncio.Event()

    async def read(
        self, prefix: bytes, *, after: bytes = b"", records_max: int = 1000, timeout_s: float
    ) -> Page:
        """See MetadataStore."""
        return self._now().read(prefix, after, records_max)

    async def commit(
        self, writes: Sequence[Write], *, conditions: Sequence[Condition] = (), timeout_s: float
    ) -> int | None:
        """See MetadataStore."""
        check_commit(writes, conditions)
        tree = self._now()
        if not tree.holds(conditions):
            return None
        tree.check_leases(writes)
        revision = tree.apply(writes)
        self._wake()
        return revision

    async def grant(self, ttl_s: float, *, timeout_s: float) -> int:
        """See MetadataStore."""
        lease = self._now().grant(ttl_s, self._clock.now_s())
        self._wake()  # watchers wait until the next lease ends
        return lease

    async def keep_alive(self, lease: int, *, timeout_s: float) -> float:
        """See MetadataStore."""
        return self._now().keep_alive(lease, self._clock.now_s())

    async def revoke(self, lease: int, *, timeout_s: float) -> None:
        """See MetadataStore."""
        self._now().revoke(lease)
        self._wake()

    async def watch(self, prefix: bytes, *, after_revision: int) -> AsyncIterator[Changes]:
        """See MetadataStore."""
        while True:
            tree, changed = self._now(), self._changed
            found = tree.changes(prefix, after_revision)
            after_revision = tree.revision
            for change in found:
                yield change
            if changed.is_set():
                continue
            ends_s = tree.next_expiry_s()
            try:
                async with asyncio.timeout(
                    None if ends_s is None else max(ends_s - self._clock.now_s(), 0.001)
                ):
                    await changed.wait()
            except TimeoutError:
                pass  # a lease ended, or would have

    async def compact(self, revision: int, *, timeout_s: float) -> None:
        """See MetadataStore."""
        self._now().compact(revision)

    async def close(self) -> None:
        """See MetadataStore. Who watches gets Closed."""
        self._closed = True
        self._wake()

    def validate(self) -> None:
        """Asserts every invariant."""
        self._tree.validate()

    def _now(self) -> RecordTree:
        """The tree, without the leases that have ended."""
        if self._closed:
            raise Closed(what="the metadata store")
        revision = self._tree.revision
        self._tree.expire(self._clock.now_s())
        if self._tree.revision != revision:
            self._wake()
        return self._tree

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
