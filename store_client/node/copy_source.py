"""Where ordered copies are read from: the seam to other nodes, and their data lanes behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import CopyOrder, Hello, NodeInfo, Status
from moonpool.schemas.packed import U8, U32, U64
from moonpool.store_client.raw_memory import bytes_at
from moonpool.store_client.rpc.credentials import Credentials
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.tcp import TcpTransport

PEERS_MAX = 8
"""Nodes whose lanes are kept open."""


class Source(Protocol):
    """The slots of other nodes, whichever an order names. To be used by one thread."""

    def read(self, order: CopyOrder, batch: ReadBatch, deadline_s: float) -> U8:
        """Fills `batch.into` and validates it (I3), checksums too. Returns a Status an object."""
        ...

    def key_texts(self, order: CopyOrder, slots: U32, generations: U64, deadline_s: float) -> list[str]:
        """Of plain objects; empty where one isn't there any more. Raises MoonpoolError."""
        ...

    def close(self) -> None:
        """A read under way fails soon. From any thread."""
        ...


class LaneSource:
    """Over tcp lanes, one to each of the nodes that were read from last."""

    def __init__(self, name: str, segment: bytes, credentials: Credentials) -> None:
        self._hello = Hello(PROTOCOL_VERSION, "data", f"node {name}")
        self._segment = segment
        self._credentials = credentials
        self._peers: dict[bytes, tuple[NodeInfo, TcpTransport]] = {}
        self._closed = False

    def read(self, order: CopyOrder, batch: ReadBatch, deadline_s: float) -> U8:
        """See Source."""
        return self._peer(order.source).read(batch, deadline_s)

    def key_texts(self, order: CopyOrder, slots: U32, generations: U64, deadline_s: float) -> list[str]:
        """See Source."""
        return self._peer(order.source).key_texts(slots, generations, deadline_s)

    def close(self) -> None:
        """See Source."""
        self._closed = True
        for _, transport in list(self._peers.values()):
            transport.close()

    def _peer(self, info: NodeInfo) -> TcpTransport:
        known, transport = self._peers.get(info.segment, (None, None))
        if transport is not None and known == info:
            return transport
        if transport is not None or len(self._peers) >= PEERS_MAX:
            self._forget(info.segment if transport is not None else next(iter(self._peers)))
        made = TcpTransport(info, self._hello, 1, lambda keyspace: None, self._credentials)
        self._peers[info.segment] = (info, made)
        if self._closed:
            made.close()
        return made

    def _forget(self, segment: bytes) -> None:
        _, transport = self._peers.pop(segment)
        transport.close()


class FakeSource:
    """Objects in this process's memory, by slot. `meanwhile` is called while they are being read."""

    def __init__(self) -> None:
        self.payloads: dict[int, bytes] = {}
        self.keys: dict[int, str] = {}
        self.meanwhile: Callable[[], None] = lambda: None

    def read(self, order: CopyOrder, batch: ReadBatch, deadline_s: float) -> U8:
        """See Source. What has another length, or isn't there, is MISSING."""
        statuses = np.full(len(batch.slots), Status.MISSING, dtype=np.uint8)
        places = zip(batch.slots.tolist(), batch.into.addresses.tolist(), batch.lengths.tolist(), strict=True)
        for index, (slot, address, length) in enumerate(places):
            payload = self.payloads.get(slot)
            if payload is not None and len(payload) == length:
                bytes_at(address, length)[:] = np.frombuffer(payload, dtype=np.uint8)
                statuses[index] = Status.OK
        self.meanwhile()
        return statuses

    def key_texts(self, order: CopyOrder, slots: U32, generations: U64, deadline_s: float) -> list[str]:
        """See Source."""
        return [self.keys.get(slot, "") for slot in slots.tolist()]

    def close(self) -> None:
        """See Source."""
