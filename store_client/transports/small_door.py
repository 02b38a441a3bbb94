"""A node of another host, asked through its RPC port: small objects in one exchange with its event loop.

A data lane has a thread at the other end, which costs more to wake and to let into the interpreter than these bytes.
"""

from __future__ import annotations

import numpy as np

from moonpool.schemas.errors import ProtocolError
from moonpool.schemas.header import HEADER_BYTES, HEADER_DTYPE
from moonpool.schemas.messages import (
    SMALL_BYTES,
    SMALL_OBJECTS,
    GetSmall,
    Hello,
    SmallData,
    decode_from_node,
)
from moonpool.schemas.packed import U8, pack_u32, pack_u64
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.rpc.connection import ConnectionPool
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.pieces import coalesce
from moonpool.store_client.transports.proof import judge, sent_of


class SmallDoor:
    """Of one node. Connects when first used; any number of threads."""

    def __init__(self, address: str, hello: Hello, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._node = ConnectionPool(address, hello, decode_from_node, credentials=credentials)
        self._copier = HostCopier()

    def takes(self, batch: ReadBatch) -> bool:
        """Whether a read is small enough."""
        return len(batch.slots) <= SMALL_OBJECTS and int(batch.lengths.sum()) <= SMALL_BYTES

    def read(self, batch: ReadBatch, deadline_s: float) -> U8:
        """As Transport.read. Raises MoonpoolError."""
        request = GetSmall(pack_u32(batch.slots), pack_u64(batch.generations), pack_u64(batch.lengths))
        reply = self._node.call(request, deadline_s)
        if not isinstance(reply, SmallData) or len(reply.statuses) != len(batch.slots):
            reason = f"{type(reply).__name__} in answer to GetSmall"
            raise ProtocolError(peer=self._node.address, reason=reason)
        statuses = np.frombuffer(reply.statuses, dtype=np.uint8).copy()
        sent, there = sent_of(batch, statuses)
        sizes = (int(there.lengths.sum()), len(sent) * HEADER_BYTES)
        if sizes != (len(reply.payload), len(reply.headers)):
            raise ProtocolError(peer=self._node.address, reason="SmallData of another size")
        self._scatter(reply.payload, there.into)
        judge(statuses, sent, there, np.frombuffer(reply.headers, dtype=HEADER_DTYPE))
        return statuses

    def _scatter(self, payload: bytes, into: Fragments) -> None:
        """Copies payloads that lie back to back, one for each of `into`."""
        start = np.uint64(address_of(np.frombuffer(payload, dtype=np.uint8)))
        places = start + np.cumsum(into.sizes, dtype=np.uint64) - into.sizes
        self._copier.to_engine(*coalesce(into.addresses, places, into.sizes))

    def close(self) -> None:
        """Calls under way fail soon."""
        self._node.close()
