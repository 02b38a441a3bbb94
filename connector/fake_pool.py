"""A pool in this process's memory, with the faults that a real one has. Host memory only."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from moonpool.connector.pool_client import BlockGet, BlockPut
from moonpool.schemas.errors import DeadlineExceeded, KeyspaceUnknown, Unavailable
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8
from moonpool.store_client.telemetry import Telemetry

Key = tuple[bytes, int, bytes]


class FakePool:
    """Satisfies PoolClient. Turn the knobs from a test at any time.

    `away`: nobody answers (Unavailable). `frozen_s`: every call takes so long, or its deadline. `blocks_max`:
    NO_SPACE beyond. `bad_put`, `bad_get`: a Status for a block, or None where nothing is wrong with it.
    """

    def __init__(self) -> None:
        self.specs: dict[bytes, KeyspaceSpec] = {}
        self.blocks: dict[Key, bytes] = {}
        self.calls: list[str] = []
        self.renewed: list[tuple[bytes, bytes]] = []
        self.away = False
        self.frozen_s = 0.0
        self.blocks_max = 1 << 30
        self.bad_put: Callable[[Key], Status | None] = lambda key: None
        self.bad_get: Callable[[Key], Status | None] = lambda key: None
        self._lock = threading.Lock()

    def register_keyspace(self, spec: KeyspaceSpec, *, timeout_s: float | None = None) -> bytes:
        """As StoreClient."""
        self._answer("register_keyspace", timeout_s)
        spec.check()
        self.specs[spec.digest()] = spec
        return spec.digest()

    def match(self, keyspace: bytes, hashes: Sequence[bytes], *, timeout_s: float | None = None) -> int:
        """As StoreClient."""
        self._answer("match", timeout_s)
        spec = self._spec(keyspace)
        with self._lock:
            for count, block in enumerate(hashes):
                if not self._ready(spec, keyspace, block):
                    return count
        return len(hashes)

    def presence(
        self, keyspace: bytes, hashes: Sequence[bytes], *, rank: int = -1, timeout_s: float | None = None
    ) -> list[bool]:
        """As StoreClient."""
        self._answer("presence", timeout_s)
        spec = self._spec(keyspace)
        with self._lock:
            return [self._ready(spec, keyspace, block) for block in hashes]

    def renew(
        self, keyspace: bytes, hashes: Sequence[bytes], *, timeout_s: float | None = None
    ) -> list[bool]:
        """As StoreClient."""
        self._answer("renew", timeout_s)
        self.renewed.append((keyspace, hashes[-1]))
        return [True] * len(hashes)

    def put_blocks(self, puts: Sequence[BlockPut], *, timeout_s: float | None = None) -> list[U8]:
        """As StoreClient."""
        try:
            self._answer("put_blocks", timeout_s)
        except (Unavailable, DeadlineExceeded):
            return [np.full(put.source.count, Status.FAILED, dtype=np.uint8) for put in puts]
        return [self._put(put) for put in puts]

    def get_blocks(self, get: BlockGet, *, timeout_s: float | None = None) -> U8:
        """As StoreClient."""
        try:
            self._answer("get_blocks", timeout_s)
        except (Unavailable, DeadlineExceeded):
            return np.full(get.into.count, Status.FAILED, dtype=np.uint8)
        statuses = np.zeros(get.into.count, dtype=np.uint8)
        for i in range(get.into.count):
            key = (get.keyspace, get.rank, get.chain[get.first + i])
            bad = self.bad_get(key)
            data = self.blocks.get(key)
            statuses[i] = bad if bad is not None else Status.OK if data is not None else Status.MISSING
            if statuses[i] == Status.OK and data is not None:
                _scatter(get, i, data)
        return statuses

    def clear(self, keyspace: bytes, *, timeout_s: float | None = None) -> object:
        """As StoreClient."""
        self._answer("clear", timeout_s)
        with self._lock:
            for key in [key for key in self.blocks if key[0] == keyspace]:
                del self.blocks[key]
        return None

    def prepare(self, *, timeout_s: float | None = None) -> int:
        """Nothing to prepare."""
        return 0

    def take_telemetry(self) -> Telemetry:
        """As a client whose only master is this one."""
        return Telemetry(open_breakers={"master": int(self.away), "node": 0})

    def close(self) -> None:
        """Nothing to close."""

    def _answer(self, call: str, timeout_s: float | None) -> None:
        self.calls.append(call)
        if self.frozen_s:
            wait_s = min(self.frozen_s, 10.0 if timeout_s is None else timeout_s)
            time.sleep(wait_s)
            if wait_s < self.frozen_s:
                raise DeadlineExceeded(peer="fake", what=call, timeout_s=wait_s)
        if self.away:
            raise Unavailable(peer="fake", retry_in_s=1.0)

    def _spec(self, keyspace: bytes) -> KeyspaceSpec:
        if keyspace not in self.specs:
            raise KeyspaceUnknown(keyspace=keyspace.hex())
        return self.specs[keyspace]

    def _ready(self, spec: KeyspaceSpec, keyspace: bytes, block: bytes) -> bool:
        return all((keyspace, rank, block) in self.blocks for rank in range(spec.world))

    def _put(self, put: BlockPut) -> U8:
        spec = self._spec(put.keyspace)
        sizes = put.source.lengths()
        statuses = np.zeros(put.source.count, dtype=np.uint8)
        for i in range(put.source.count):
            position = put.first + i
            key = (put.keyspace, put.rank, put.chain[position])
            assert sizes[i] == spec.shard_bytes[put.rank], "a shard of another size than its keyspace says"
            parent = (put.keyspace, put.rank, put.chain[position - 1]) if position else None
            with self._lock:
                bad = self.bad_put(key)
                if bad is not None:
                    statuses[i] = bad
                elif key in self.blocks:
                    statuses[i] = Status.EXISTS
                elif spec.kind is Kind.CHAINED and parent is not None and parent not in self.blocks:
                    statuses[i] = Status.NO_PARENT
                elif len(self.blocks) >= self.blocks_max:
                    statuses[i] = Status.NO_SPACE
                else:
                    self.blocks[key] = _gather(put, i)
        return statuses


def _gather(put: BlockPut, i: int) -> bytes:
    source = put.source
    pieces = range(int(source.offsets[i]), int(source.offsets[i + 1]))
    return b"".join(ctypes.string_at(int(source.addresses[p]), int(source.sizes[p])) for p in pieces)


def _scatter(get: BlockGet, i: int, data: bytes) -> None:
    into = get.into
    done = 0
    for p in range(int(into.offsets[i]), int(into.offsets[i + 1])):
        size = int(into.sizes[p])
        ctypes.memmove(int(into.addresses[p]), data[done : done + size], size)
        done += size
    assert done == len(data)
