"""A node that exists only on paper: it announces a segment and reports blocks, and holds not a byte of them.

The master can't tell, so its index can be filled with millions of blocks in seconds.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import (
    Announce,
    Entries,
    Heartbeat,
    Hello,
    InventoryEnd,
    NodeInfo,
    Op,
    Report,
    decode_from_master,
)
from moonpool.schemas.packed import pack_u16, pack_u32, pack_u64
from moonpool.store_client.rpc.connection import RpcConnection

BLOCKS_PER_REPORT = 2048


def node_info(segment: bytes) -> NodeInfo:
    """A node without doors."""
    return NodeInfo(
        node="paper",
        segment=segment,
        host="nowhere",
        rpc_address="",
        data_address="",
        unix_path="",
        segment_path="",
        capacity_bytes=1 << 44,
        page_bytes=64 << 20,
    )


def chain_entries(keyspace: bytes, chain: list[bytes], world: int, first_slot: int) -> Iterator[Op]:
    """Reports of every rank of a chain, in pieces."""
    for first in range(0, len(chain), BLOCKS_PER_REPORT):
        part = chain[first : first + BLOCKS_PER_REPORT]
        parents = [bytes(len(chain[0])) if first == 0 else chain[first - 1], *part[:-1]]
        count = len(part)
        for rank in range(world):
            slots = np.arange(first_slot + first, first_slot + first + count, dtype=np.uint32)
            yield Entries(
                keyspace=keyspace,
                ranks=pack_u16([rank] * count),
                positions=pack_u32(range(first, first + count)),
                hashes=b"".join(part),
                parents=b"".join(parents),
                slots=pack_u32(slots + np.uint32(rank << 24)),
                generations=pack_u64(np.full(count, 1)),
                lengths=pack_u64(np.full(count, 65536)),
            )


def byte_entries(
    keyspace: bytes,
    positions: Sequence[int],
    names: Sequence[bytes],
    parents: Sequence[bytes],
    slots: Sequence[int],
) -> Entries:
    """Commits of one rank's blocks of one byte each."""
    count = len(names)
    return Entries(
        keyspace=keyspace,
        ranks=pack_u16([0] * count),
        positions=pack_u32(positions),
        hashes=b"".join(names),
        parents=b"".join(parents),
        slots=pack_u32(slots),
        generations=pack_u64([1] * count),
        lengths=pack_u64([1] * count),
    )


class PaperNode:
    """Announces itself at once; `report` sends operations; `close` ends its inventory for good."""

    def __init__(self, address: str, spec: KeyspaceSpec, segment: bytes = b"") -> None:
        """`segment`: one that an earlier node had; empty: a new one."""
        self.segment = segment or secrets.token_bytes(8)
        self._sequence = 0
        self._stream = secrets.randbits(62)
        hello = Hello(PROTOCOL_VERSION, "node", "paper")
        self._connection = RpcConnection(address, hello, decode_from_master)
        self._connection.call(Announce(node_info(self.segment), [spec], 0), time.monotonic() + 5)

    def report(self, ops: list[Op]) -> None:
        """One numbered message of the stream."""
        message = Report(self.segment, self._stream, self._sequence, ops)
        self._connection.call(message, time.monotonic() + 60)
        self._sequence += 1

    def finish_inventory(self) -> None:
        """From here on the node counts as known."""
        self.report([InventoryEnd()])

    def heartbeat(self, epoch: int) -> None:
        """Keeps it alive."""
        self._connection.call(Heartbeat(self.segment, epoch, 1 << 44), time.monotonic() + 5)

    def close(self) -> None:
        """Leaves."""
        self._connection.close()


@contextmanager
def filled(address: str, spec: KeyspaceSpec, chains: Iterator[list[bytes]]) -> Iterator[None]:
    """A node on paper that holds these chains and lives while the block runs."""
    node = PaperNode(address, spec)
    first_slot = 0
    for chain in chains:
        for entries in chain_entries(spec.digest(), chain, spec.world, first_slot):
            node.report([entries])
        first_slot += len(chain)
    node.finish_inventory()
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(1.0):
            node.heartbeat(0)

    beats = threading.Thread(target=beat, daemon=True)
    beats.start()
    try:
        yield
    finally:
        stop.set()
        beats.join()
        node.close()
