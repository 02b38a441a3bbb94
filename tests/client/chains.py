"""Blocks in numpy memory whose contents follow from their keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from support.payloads import payload

from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8
from moonpool.store_client import BlockGet, BlockPut, Fragments, KeyspaceSpec, Kind, StoreClient


def chained(name: str, shard_bytes: int = 64 << 10, world: int = 1) -> KeyspaceSpec:
    """A chained keyspace."""
    return KeyspaceSpec(kind=Kind.CHAINED, name=name, shard_bytes=(shard_bytes,) * world)


class Engine:
    """Memory for `count` blocks of `fragments` pieces each, one array a layer, in a shuffled block order."""

    def __init__(self, count: int, block_bytes: int, fragments: int = 1, seed: int = 0) -> None:
        assert block_bytes % fragments == 0
        self.count = count
        self.piece = block_bytes // fragments
        self.layers = [np.zeros((count + 3, self.piece), dtype=np.uint8) for _ in range(fragments)]
        self.order = np.random.default_rng(seed).permutation(count + 3)[:count]

    @property
    def fragments(self) -> Fragments:
        """Of all blocks."""
        bases = np.array([layer.__array_interface__["data"][0] for layer in self.layers], dtype=np.uint64)
        rows = self.order.astype(np.uint64) * np.uint64(self.piece)
        return Fragments.grid(
            bases[None, :] + rows[:, None], np.full((1, len(self.layers)), self.piece, np.uint64)
        )

    def block(self, i: int) -> U8:
        """The bytes of block i."""
        return np.concatenate([layer[self.order[i]] for layer in self.layers])

    def fill(self, hashes: list[bytes], rank: int) -> None:
        """Every block gets what its key says."""
        for i, block_hash in enumerate(hashes):
            content = payload(block_hash, rank, self.piece * len(self.layers))
            for layer, part in zip(self.layers, content.reshape(len(self.layers), -1), strict=True):
                layer[self.order[i]] = part

    def wrong(self, hashes: list[bytes], rank: int, statuses: U8) -> list[int]:
        """Blocks that are said to be OK and don't hold what their keys say."""
        size_bytes = self.piece * len(self.layers)
        return [
            i
            for i, block_hash in enumerate(hashes)
            if statuses[i] == Status.OK
            and not np.array_equal(self.block(i), payload(block_hash, rank, size_bytes))
        ]


def put_chain(
    client: StoreClient,
    keyspace: bytes,
    chain: list[bytes],
    block_bytes: int,
    rank: int = 0,
    fragments: int = 1,
) -> U8:
    """Puts a whole chain, contents by key."""
    engine = Engine(len(chain), block_bytes, fragments)
    engine.fill(chain, rank)
    return client.put_blocks([BlockPut(keyspace, rank, chain, 0, engine.fragments)], timeout_s=30)[0]


def get_chain(
    client: StoreClient,
    keyspace: bytes,
    chain: list[bytes],
    block_bytes: int,
    rank: int = 0,
    fragments: int = 1,
) -> U8:
    """Gets a whole chain. Statuses; asserts that whatever is OK is right."""
    engine = Engine(len(chain), block_bytes, fragments, seed=1)
    statuses = client.get_blocks(BlockGet(keyspace, rank, chain, 0, engine.fragments), timeout_s=30)
    assert not engine.wrong(chain, rank, statuses)
    return statuses


def all_ok(statuses: NDArray[np.uint8]) -> bool:
    """Whether every one is OK."""
    return bool((statuses == Status.OK).all())
