"""A segment in plain memory, read and written over the fake engine."""

from __future__ import annotations

import itertools
from concurrent.futures import Future

import numpy as np
from support.node_info import node_info
from support.node_sink import IndexSink
from support.payloads import payload

from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace
from moonpool.schemas.messages import BeginItem, Granted, Hello, Status
from moonpool.schemas.packed import U8, U32, U64, pack_u64, u32s, u64s
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.engine_pulls import PullHooks, Pulls
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.puts import LANES
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.engine.access import EngineAccess
from moonpool.store_client.transports.engine.fake import FakeEngine
from moonpool.store_client.transports.engine.landing import Landing
from moonpool.store_client.transports.engine.transport import EngineTransport

BLOCK_BYTES = 24 << 10
SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="model", shard_bytes=(BLOCK_BYTES,))
OBJECTS = objects_keyspace()


class FakeNode:
    """A core over plain memory that an engine can read, its pulls, and a transport to it."""

    def __init__(self, pages: int = 8) -> None:
        self.engine = FakeEngine()
        memory = HeapMemory(Layout(1 << 20, pages))
        self.core = NodeCore(memory, IndexSink())
        self.core.register(SPEC)
        self.core.register(OBJECTS)
        self.memory: U8 = memory.buffer
        base = address_of(self.memory)
        self.engine.register(base, len(self.memory))
        self.landing = Landing(self.engine, HostCopier(), 2)
        self._put_ids = itertools.count(1)
        hooks = PullHooks(self._begin, self._visible, 0.05, self._put_ids)
        self.pulls = Pulls(self.core, self.engine, self.landing, hooks, base)
        self.info = node_info(
            segment=memory.head.segment,
            rpc_address="127.0.0.1:1",
            capacity_bytes=memory.head.layout.capacity_bytes,
            page_bytes=memory.head.layout.page_bytes,
            engine_address=str(self.engine.address),
            engine_base=base,
        )
        self.access = EngineAccess(self.engine, HostCopier())
        hello = Hello(protocol=PROTOCOL_VERSION, role="client", client="test")
        self.transport = EngineTransport(self.info, hello, self.access, lambda keyspace: None)

    def close(self) -> None:
        self.transport.close()
        self.access.close()
        self.landing.close()

    def put(self, item: BeginItem, contents: list[U8]) -> tuple[U32, U64]:
        """Committed as a lane would; slots and generations."""
        put_id = next(self._put_ids)
        granted = self._begin(put_id, item)
        assert set(granted.statuses) == {Status.OK}
        slots = u32s(granted.slots)
        allocator, layout = self.core.slots.allocator, self.core.slots.layout
        for start, content in zip(
            layout.data_offsets(slots, allocator.slot_bytes[slots >> 16]).tolist(), contents, strict=True
        ):
            self.memory[start : start + len(content)] = content
        self.core.commit(LANES, [put_id])
        return slots, u64s(granted.generations)

    def put_blocks(self, hashes: list[bytes]) -> tuple[U32, U64]:
        """Blocks of SPEC whose contents follow from their hashes."""
        item = BeginItem(SPEC.digest(), 0, 0, b"", b"".join(hashes), pack_u64([BLOCK_BYTES] * len(hashes)))
        return self.put(item, [payload(one, 0, BLOCK_BYTES) for one in hashes])

    def free(self, slots: U32) -> None:
        """As if they had been evicted."""
        self.core.slots.forget(slots)

    def _begin(self, put_id: int, item: BeginItem) -> Granted:
        with self.core.lock:
            granted = self.core.lane_begin(put_id, item, partial=True)
        assert isinstance(granted, Granted)
        return granted

    def _visible(self, serial: int) -> Future[None]:
        seen: Future[None] = Future()
        seen.set_result(None)
        return seen


def read_of(hashes: list[bytes], slots: U32, generations: U64, into: Fragments) -> ReadBatch:
    """A read of blocks of SPEC."""
    return ReadBatch(
        keyspace=SPEC.digest(),
        rank=0,
        hashes=np.array(hashes, dtype="S32"),
        slots=slots,
        generations=generations,
        lengths=into.lengths(),
        into=into,
    )
