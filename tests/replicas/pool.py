"""A master and several nodes, each on a host of its own as far as anybody can tell."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np
from support.guarded import TOKENS
from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace
from moonpool.schemas.messages import NodeState, Status
from moonpool.store_client import BlockGet, BlockPut, StoreClient
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.raw_memory import address_of

BLOCK_BYTES = 64 << 10
SIZE_BYTES = 32 << 20
QUICK = ("--suspect-after-s", "3", "--lost-after-s", "5", "--heartbeat-s", "0.2")
"""Lost soon, but not for a pause of a second."""


class ReplicaPool:
    """`nodes` by name; all are live when `with` has begun. `token`: the name of the client's, where the pool is guarded."""

    def __init__(
        self,
        *names: str,
        master: Sequence[str] = QUICK,
        size: int = SIZE_BYTES,
        token: str = "",
        **settings: object,
    ) -> None:
        self._names = names
        self.master = MasterProcess(master)
        self._size = size
        self._token = TOKENS[token] if token else ""
        self._settings = settings | ({"token": TOKENS["node"]} if token else {})
        self.nodes: dict[str, NodeProcess] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.master)
            settings = {"begin_wait_s": 5, **self._settings}
            for name in self._names:
                node = NodeProcess(self.master, name=name, size=self._size, prefault=False, **settings)
                self.nodes[name] = stack.enter_context(node)
            self.client = stack.enter_context(
                StoreClient(
                    ClientSettings(
                        master=self.master.address, transport="tcp", timeout_s=30.0, token=self._token
                    )
                )
            )
            wait_until(lambda: len(self.live()) == len(self._names))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stack.close()

    def live(self) -> set[str]:
        """Names of the nodes that the master may send readers to."""
        return {entry.info.node for entry in self.client.cluster_map().nodes if entry.state is NodeState.LIVE}

    def holders(self, keyspace: bytes, block_hash: bytes) -> list[str]:
        """Names of the nodes that hold a block of one rank, sorted."""
        names = {entry.info.segment: entry.info.node for entry in self.client.cluster_map().nodes}
        return sorted(names[copy.segment] for copy in self.client.describe(keyspace, block_hash).copies)


class Chain:
    """A chain of blocks with bytes that can be told from its hashes."""

    def __init__(self, name: str, count: int) -> None:
        self.spec = KeyspaceSpec(kind=Kind.CHAINED, name=f"model of {name}", shard_bytes=(BLOCK_BYTES,))
        self.keyspace = self.spec.digest()
        self.hashes = [hashlib.sha256(f"{name} {at}".encode()).digest() for at in range(count)]
        one = [np.frombuffer(h * (BLOCK_BYTES // 32), dtype=np.uint8) for h in self.hashes]
        self.payload = np.stack(one)

    def put(self, client: StoreClient) -> None:
        """All of it. Every block must be taken."""
        client.register_keyspace(self.spec)
        source = fragments(self.payload)
        (statuses,) = client.put_blocks([BlockPut(self.keyspace, 0, self.hashes, 0, source)])
        assert (statuses == Status.OK).all(), statuses
        # Reported a little later.
        wait_until(lambda: client.match(self.keyspace, self.hashes) == len(self.hashes))

    def get(self, client: StoreClient) -> int:
        """How many blocks come back, each of them right."""
        found = np.zeros_like(self.payload)
        statuses = client.get_blocks(BlockGet(self.keyspace, 0, self.hashes, 0, fragments(found)))
        good = statuses == Status.OK
        assert (found[good] == self.payload[good]).all(), "wrong bytes"
        return int(good.sum())


def fragments(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> Fragments:
    """Each row as one piece."""
    starts = address_of(rows) + np.arange(len(rows), dtype=np.uint64) * np.uint64(rows.shape[1])
    return Fragments.grid(
        starts.reshape(-1, 1).astype(np.uint64), np.array([[rows.shape[1]]], dtype=np.uint64)
    )


OBJECTS = objects_keyspace().digest()
