"""A writer of the node's own host, call by call; run as a program it opens a put and waits.

Arguments: the node's Unix socket, a run dir, how many blocks. Says "granted" once it may write.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import time
from typing import Self

import numpy as np

from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.header import HEADER_DTYPE, Headers
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Begin,
    BeginItem,
    Commit,
    Committed,
    Granted,
    Hello,
    Message,
    OpenSession,
    RegisterKeyspace,
    SessionOpened,
    decode_from_node,
)
from moonpool.schemas.packed import U32, u32s
from moonpool.store_client.host import session_lock_path
from moonpool.store_client.node.layout import Layout, page_table
from moonpool.store_client.rpc.connection import RpcConnection

BLOCK_BYTES = 20_000
SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="model", shard_bytes=(BLOCK_BYTES,))
DIGEST = SPEC.digest()


def hashes_of(seed: int, count: int) -> bytes:
    """Packed hashes."""
    return np.random.default_rng(seed).bytes(32 * count)


class LocalWriter:
    """Holds its lock until closed. Mapped like a client would map."""

    def __init__(self, unix_path: str, run_dir: str, session: int = 0) -> None:
        self.session = session or (os.getpid() << 20) + time.monotonic_ns() % (1 << 20)
        self.connection = RpcConnection(
            f"unix:{unix_path}", Hello(PROTOCOL_VERSION, "client", "writer"), decode_from_node
        )
        self.lock_path = session_lock_path(run_dir, self.session)
        self._lock = self.lock_path.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.open()
        self.puts = 0

    def open(self) -> None:
        """Tells the node of the session."""
        opened = self.call(OpenSession(self.session, os.getpid(), str(self.lock_path)))
        assert isinstance(opened, SessionOpened)
        self.opened = opened
        layout = Layout.of(opened.info.capacity_bytes, opened.info.page_bytes)
        with open(opened.info.segment_path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), layout.file_bytes)
        self.layout = layout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As if the process had died."""
        self.connection.close()
        self._lock.close()

    def call(self, message: Message, timeout_s: float = 30.0) -> Message:
        return self.connection.call(message, time.monotonic() + timeout_s)

    def request(self, count: int) -> Begin:
        """The next Begin."""
        self.puts += 1
        item = BeginItem(DIGEST, 0, 0, b"", hashes_of(self.session + self.puts, count))
        return Begin(self.session, self.puts, [item])

    def begin(self, count: int) -> Granted:
        self.call(RegisterKeyspace(SPEC))
        granted = self.call(self.request(count))
        assert isinstance(granted, Granted)
        return granted

    def commit(self, put_id: int, visible: bool = False) -> bytes:
        committed = self.call(Commit(self.session, [put_id], visible))
        assert isinstance(committed, Committed)
        return committed.statuses[0]

    def put(self, count: int, visible: bool = False) -> Granted:
        granted = self.begin(count)
        for index, slot in enumerate(u32s(granted.slots)):
            self.write(int(slot), bytes([index]) * BLOCK_BYTES)
        assert self.commit(granted.put_id, visible) == bytes(count)
        return granted

    def write(self, slot: int, payload: bytes) -> None:
        start = self._start(slot)
        self.memory[start : start + len(payload)] = payload

    def read(self, slot: int) -> bytes:
        start = self._start(slot)
        return self.memory[start : start + BLOCK_BYTES]

    def _start(self, slot: int) -> int:
        slots = np.array([slot], dtype=np.uint32)
        lengths = np.array([BLOCK_BYTES], dtype=np.uint64)
        offsets, inside = self.layout.find(slots, lengths, page_table(self.memory, self.layout))
        assert inside.all()
        return int(offsets[0])

    def headers(self, slots: U32) -> Headers:
        rows = self.layout.page_count * self.layout.headers_per_page
        table = np.frombuffer(self.memory, dtype=HEADER_DTYPE, count=rows, offset=self.layout.header_offset)
        return table[self.layout.header_rows(slots)].copy()


if __name__ == "__main__":
    writer = LocalWriter(sys.argv[1], sys.argv[2])
    writer.begin(int(sys.argv[3]))
    print("granted", flush=True)
    time.sleep(600)
