"""A master with its dashboard, a node, and prompts in them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import httpx
import numpy as np

from moonpool.schemas.config import ClientSettings
from moonpool.store_client import BlockPut, Fragments, KeyspaceSpec, Kind, StoreClient
from support.ports import free_ports
from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

BLOCK_BYTES = 16 << 10
RANKS = 2
SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="tiny/model", shard_bytes=(BLOCK_BYTES,) * RANKS, block_tokens=16)


def chain_of(name: str, count: int) -> list[bytes]:
    """Hashes that differ in every byte."""
    return [np.random.default_rng([hash_of(name), at]).bytes(32) for at in range(count)]


def hash_of(name: str) -> int:
    """Equal in every process."""
    return int.from_bytes(name.encode(), "little")


class DashboardPool:
    """`arguments`: more flags of the master. `token`, `node_token`: what the client and the node show."""

    def __init__(self, *arguments: str, token: str = "", node_token: str = "") -> None:
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        port = self.url.rpartition(":")[2]
        self.token, self.node_token = token, node_token
        self.keyspace = SPEC.digest()
        self.master = MasterProcess(["--http-port", port, *arguments])

    def __enter__(self) -> Self:
        self.master.__enter__()
        settings = {"token": self.node_token} if self.node_token else {}
        self.node = NodeProcess(self.master.address, size=64 << 20, **settings)
        self.node.__enter__()
        self.client = StoreClient(
            ClientSettings(
                master=self.master.address, run_dir=self.node.run_dir, token=self.token, timeout_s=20
            )
        )
        wait_until(self._answers)
        return self

    def _answers(self) -> bool:
        try:
            health = httpx.get(f"{self.url}/api/v1/health", timeout=10.0).json()
            return bool(health["ready"] and not health["warnings"])
        except httpx.TransportError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.client.close()
        self.node.__exit__(kind, error, at)
        self.master.__exit__(kind, error, at)

    def fill(self) -> list[list[bytes]]:
        """Three prompts that begin alike, asked for and put."""
        keyspace = self.client.register_keyspace(SPEC)
        assert keyspace == self.keyspace
        system = chain_of("system", 6)
        chains = [system + chain_of(f"question {n}", 5) for n in range(3)]
        payload = np.zeros((16, BLOCK_BYTES), dtype=np.uint8)
        base = payload.__array_interface__["data"][0]
        for chain in chains:
            ready = self.client.match(keyspace, chain)
            for rank in range(RANKS if ready < len(chain) else 0):
                rows = [[base + at * BLOCK_BYTES] for at in range(len(chain) - ready)]
                source = Fragments.grid(np.array(rows, np.uint64), np.full((1, 1), BLOCK_BYTES, np.uint64))
                self.client.put_blocks([BlockPut(keyspace, rank, chain, ready, source)])
            wait_until(lambda chain=chain: self.client.match(keyspace, chain) == len(chain))
        return chains
