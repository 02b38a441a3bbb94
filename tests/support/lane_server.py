"""The data port over plain memory, in the test's own process."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from moonpool.schemas.errors import (
    CODES,
    Unavailable,
)
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace
from moonpool.schemas.messages import (
    BeginItem,
    Failed,
    Granted,
    Message,
)
from moonpool.schemas.packed import pack_u64
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.lane_writes import LaneHooks
from moonpool.store_client.node.lanes import LaneServer
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.reports import Seen, Surplus, Wait
from support.node_sink import IndexSink
from support.waiting import wait_until

SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="model", shard_bytes=(40_000,))

OBJECTS = objects_keyspace()
PAGE = 1 << 20


class Served:
    """A lane server over plain memory."""

    def __init__(self, lanes_max: int = 8) -> None:
        self.core = NodeCore(HeapMemory(Layout(PAGE, 8)), IndexSink())
        self.seen: list[dict[int, int]] = []
        self.settled = True
        self.outcome: Surplus | Unavailable = {}
        """What the master is to say of the first commit that waits for it."""
        hooks = LaneHooks(
            self._begin,
            self.core.register,
            self._watch,
            0.05,
            itertools.count(1),
            lambda shard: self.settled,
        )
        self.server = LaneServer(self.core, hooks, lanes_max)
        self.port = self.server.start("127.0.0.1", 0)

    def _begin(self, put_id: int, item: BeginItem) -> Granted:
        with self.core.lock:
            granted = self.core.lane_begin(put_id, item, partial=True)
        assert isinstance(granted, Granted)
        return granted

    def _watch(self, serials: Mapping[int, int], seen: Seen, *, unbroken: bool = False) -> Wait:
        self.seen.append(dict(serials))
        wait = Wait(None, seen, unbroken=unbroken)
        if len(self.seen) == 1:
            wait.end(self.outcome)
        return wait

    def wait_idle(self) -> None:
        """Until every lane has ended and nothing is WRITING."""
        wait_until(lambda: not self.server.facts()["lanes"] and not self.core.slots.writing.any())
        self.core.validate()


def chain(count: int, seed: int = 0) -> tuple[BeginItem, bytes, np.ndarray]:
    """(item, payload, hashes as S32) of new blocks."""
    rng = np.random.default_rng(seed)
    hashes = rng.bytes(32 * count)
    item = BeginItem(SPEC.digest(), 0, 0, b"", hashes, pack_u64([40_000] * count))
    return item, rng.bytes(40_000 * count), np.frombuffer(hashes, dtype="S32")


def code(message: Message) -> type[Exception]:
    assert isinstance(message, Failed), message
    return CODES[message.code]
