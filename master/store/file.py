"""Hard state in one file: the embedded default. A commit is answered when it is on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from moonpool.master.store.base import Condition, Delete, DeletePrefix, Put, Record, Write
from moonpool.master.store.limits import check_commit
from moonpool.master.store.log_file import LogFile
from moonpool.master.store.memory import MemoryStore
from moonpool.master.store.tree import RecordTree
from moonpool.schemas.clock import Clock
from moonpool.schemas.errors import Closed, CorruptStore, DeadlineExceeded

REWRITE_FROM_BYTES = 1 << 20
REWRITE_FACTOR = 3
"""The file is written anew when it is this many times what its records need."""


class _Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """The first frame. `records` frames of Kept follow."""

    revision: int


class _Kept(msgspec.Struct, frozen=True, array_like=True, tag="kept"):
    key: bytes
    value: bytes
    version: int


class _Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    revision: int
    puts: list[tuple[bytes, bytes]]
    deletes: list[bytes]
    prefixes: list[bytes]


_decoder = msgspec.msgpack.Decoder(_Snapshot | _Kept | _Commit)


class FileStore(MemoryStore):
    """A MetadataStore. Leased records aren't written: they live as long as a process, and the file has only one.
    Raises StoreFailed and CorruptStore when it is made."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._log = LogFile(path)
        try:
            self._tree = self._load(self._log.bodies)
        except BaseException:
            self._log.close()
            raise
        self._log.bodies = []
        self._rewrite_from_bytes = REWRITE_FROM_BYTES
        self._one_write = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata-file")
        self._tasks: set[asyncio.Task[int | None]] = set()

    def _load(self, bodies: Sequence[bytes]) -> RecordTree:
        """What the frames say. A frame that is whole and yet none of ours is another version's, or damage."""
        tree = RecordTree()
        for number, body in enumerate(bodies):
            try:
                frame = _decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise CorruptStore(path=str(self._log.path), offset=number, reason=str(error)) from None
            if isinstance(frame, _Snapshot):
                tree = RecordTree(frame.revision)
            elif isinstance(frame, _Kept):
                tree.restore(Record(frame.key, frame.value, frame.version))
            else:
                tree.revision = max(tree.revision, frame.revision - 1)
                writes: list[Write] = [Put(key, value) for key, value in frame.puts]
                tree.apply(
                    writes + [Delete(key) for key in frame.deletes] + [*map(DeletePrefix, frame.prefixes)]
                )
        tree.compact(tree.revision)
        return tree

    # ------------------------------------------------------------ writing

    async def commit(
        self, writes: Sequence[Write], *, conditions: Sequence[Condition] = (), timeout_s: float
    ) -> int | None:
        """See MetadataStore. After DeadlineExceeded the write goes on."""
        check_commit(writes, conditions)
        return await self._within(timeout_s, self._commit(writes, conditions), "a commit")

    async def revoke(self, lease: int, *, timeout_s: float) -> None:
        """See MetadataStore."""
        await self._within(timeout_s, self._revoke(lease), "a revoke")

    async def _within(self, timeout_s: float, work: Coroutine[Any, Any, int | None], what: str) -> int | None:
        """A cancelled or late caller doesn't cut a write in two: it goes on by itself."""
        if self._closed:
            work.close()
            raise Closed(what="the metadata store")
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            raise DeadlineExceeded(peer=f"file:{self._log.path}", what=what, timeout_s=timeout_s)
        return task.result()

    def _ended(self, task: asyncio.Task[int | None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; if nobody did, it must not be reported as lost

    async def _commit(self, writes: Sequence[Write], conditions: Sequence[Condition]) -> int | None:
        async with self._one_write:
            tree = self._expired()
            if not tree.holds(conditions):
                return None
            tree.check_leases(writes)
            body = msgspec.msgpack.encode(
                _Commit(
                    tree.revision + 1,
                    [
                        (write.key, write.value)
                        for write in writes
                        if isinstance(write, Put) and not write.lease
                    ],
                    [
                        write.key
                        for write in writes
                        if isinstance(write, Delete) or (isinstance(write, Put) and write.lease)
                    ],
                    [write.prefix for write in writes if isinstance(write, DeletePrefix)],
                )
            )
            await self._append(body)
            revision = tree.apply(writes)
            self._wake()
            return revision

    async def _revoke(self, lease: int) -> None:
        async with self._one_write:
            self._expired().revoke(lease)
            self._wake()

    async def _append(self, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self._log.broken or not self._log.size_bytes or self._log.size_bytes > self._rewrite_from_bytes:
            kept = [record for record in self._tree.records() if not record.lease]
            frames: list[_Snapshot | _Kept] = [_Snapshot(self._tree.revision)]
            frames += [_Kept(record.key, record.value, record.version) for record in kept]
            bodies = [msgspec.msgpack.encode(frame) for frame in frames]
            await loop.run_in_executor(self._thread, self._log.rewrite, bodies)
            self._rewrite_from_bytes = max(REWRITE_FROM_BYTES, REWRITE_FACTOR * self._log.size_bytes)
        await loop.run_in_executor(self._thread, self._log.append, body)

    # ------------------------------------------------------------ the rest

    def _now(self) -> RecordTree:
        """A write that is on its way to the disk was checked against the tree: leases don't end meanwhile."""
        if self._one_write.locked() and not self._closed:
            return self._tree
        return self._expired()

    def _expired(self) -> RecordTree:
        return super()._now()

    async def close(self) -> None:
        """See MetadataStore. Waits for writes that are on their way."""
        if self._closed:
            return
        if self._tasks:
            await asyncio.wait(self._tasks)
        await super().close()
        self._thread.shutdown()
        self._log.close()
