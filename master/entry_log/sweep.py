"""Which chunks of a shard's tables differ from what the store has. Pure: a pass looks at all of them in turn.

There is nothing to keep up to date where rows come and go: a pass compares checksums of the columns, a few ms for a
million rows. Each chunk has one key, written over and over, so the log is as large as the index and never longer; and
a row that came and went between two passes was never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import xxhash

from moonpool.master.entry_log.chunk import encode_chunk, rows_a_chunk
from moonpool.master.store.base import Delete, Put
from moonpool.master.table import Table

CHUNKS_A_STEP = 64
"""Looked at in one step: a fraction of a millisecond."""

UNKNOWN = 0


def log_prefix(shard: int) -> bytes:
    """Of all chunks of a shard."""
    return f"log/{shard:05}/".encode()


def chunk_key(shard: int, keyspace: bytes, chunk: int) -> bytes:
    """Of one."""
    return log_prefix(shard) + f"{keyspace.hex()}/{chunk:07}".encode()


def keyspace_of(key: bytes) -> bytes:
    """The keyspace of a chunk's key. Raises ValueError."""
    return bytes.fromhex(key.split(b"/")[2].decode())


class LogSweep:
    """One shard's log. `known`: keys that the store has when its owner begins."""

    def __init__(self, shard: int, known: Iterable[bytes] = ()) -> None:
        self.shard = shard
        self.behind = 0
        """Chunks of the last pass that the store did not have as they were."""
        self._written: dict[bytes, int] = dict.fromkeys(known, UNKNOWN)
        self._todo: list[tuple[bytes, int]] = []
        self._leftover: list[bytes] = []
        self._found = 0

    @property
    def passing(self) -> bool:
        """Whether a pass is under way."""
        return bool(self._todo or self._leftover)

    def begin(self, tables: Iterable[Table]) -> None:
        """A new pass."""
        self._todo = [
            (table.keyspace, chunk)
            for table in tables
            for chunk in range(-(-table.columns.count // rows_a_chunk(table)))
        ]
        self._todo.reverse()
        there = {chunk_key(self.shard, *one) for one in self._todo}
        self._leftover = [key for key in self._written if key not in there]
        self._found = 0

    def end(self) -> None:
        """All of a pass is written."""
        self.behind = self._found

    def step(
        self, table_of: Callable[[bytes], Table | None], name_of: Callable[[int], tuple[bytes, str]]
    ) -> tuple[Put | Delete, int] | None:
        """Goes on until something is to be written: that, and its checksum for `wrote`. None: nothing for now."""
        if self._leftover:
            return Delete(self._leftover.pop()), UNKNOWN
        for _ in range(CHUNKS_A_STEP):
            if not self._todo:
                return None
            keyspace, chunk = self._todo.pop()
            table = table_of(keyspace)
            if table is None:
                continue
            key, now = chunk_key(self.shard, keyspace, chunk), fingerprint(table, chunk)
            if self._written.get(key) == now:
                continue
            data = encode_chunk(table, chunk, name_of)
            if data:
                self._found += 1
                return Put(key, data), now
            if key in self._written:
                return Delete(key), UNKNOWN
        return None

    def wrote(self, write: Put | Delete, checksum: int) -> None:
        """The store has it."""
        if isinstance(write, Put):
            self._written[write.key] = checksum
        else:
            self._written.pop(write.key, None)

    def validate(self) -> None:
        """Asserts that every key is of this shard."""
        assert all(key.startswith(log_prefix(self.shard)) for key in self._written)


def fingerprint(table: Table, chunk: int) -> int:
    """Changes when any copy in the chunk does; never UNKNOWN."""
    size = rows_a_chunk(table)
    first, last = chunk * size, (chunk + 1) * size
    cells = slice(first * table.world, last * table.world)
    digest = xxhash.xxh3_64()
    digest.update(memoryview(table.committed)[first:last])
    for column in (table.which, table.slots, table.generations):
        digest.update(memoryview(column)[cells])
    return digest.intdigest() or 1
