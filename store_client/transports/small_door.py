"""Small objects in one exchange with a node's event loop: through its RPC port, puts also through its Unix socket.

A data lane has a thread at the other end, which costs more to wake and to let into the interpreter than these bytes. Only
reads that a lane serves in C are quicker there.
"""

from __future__ import annotations

import ctypes

import msgspec
import numpy as np

from moonpool.schemas.errors import KeyspaceUnknown, ProtocolError
from moonpool.schemas.header import HEADER_BYTES, HEADER_DTYPE
from moonpool.schemas.messages import (
    SMALL_BYTES,
    SMALL_OBJECTS,
    Committed,
    GetSmall,
    PutSmall,
    SmallData,
)
from moonpool.schemas.packed import U8, pack_u32, pack_u64
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.rpc.connection_pool import ConnectionPool
from moonpool.store_client.transports.base import ReadBatch, SpecOf, WriteBatch
from moonpool.store_client.transports.pieces import coalesce
from moonpool.store_client.transports.proof import judge, sent_of
from moonpool.store_client.transports.told import tell_and_call

SMALL_PIECES = 64
"""Of a put that is sent in one message: each is copied by itself."""


class SmallDoor:
    """Of one node. Any number of threads."""

    def __init__(self, node: ConnectionPool, spec_of: SpecOf) -> None:
        """`node`: whose owner closes it."""
        self._node = node
        self._spec_of = spec_of
        self._copier = HostCopier()

    def write(self, batch: WriteBatch, deadline_s: float) -> U8:
        """Of a batch that `is_small`: a Status an object. Raises MoonpoolError."""
        return np.frombuffer(self.put(small_put(batch), deadline_s), dtype=np.uint8).copy()

    def put(self, message: PutSmall, deadline_s: float) -> bytes:
        """See Door."""
        try:
            reply = self._node.call(message, deadline_s)
        except KeyspaceUnknown as error:
            keyspace = message.item.keyspace
            reply = tell_and_call(self._node, message, keyspace, self._spec_of, deadline_s, error)
        count = len(message.item.lengths) // 8
        if not isinstance(reply, Committed) or len(reply.statuses) != 1 or len(reply.statuses[0]) != count:
            reason = f"{type(reply).__name__} in answer to PutSmall"
            raise ProtocolError(peer=self._node.address, reason=reason)
        return reply.statuses[0]

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


def is_small_read(count: int, size_bytes: int) -> bool:
    """Whether so many objects may be read in one message."""
    return count <= SMALL_OBJECTS and size_bytes <= SMALL_BYTES


def is_small(batch: WriteBatch) -> bool:
    """Whether a put may be sent in one message."""
    return len(batch.source.sizes) <= SMALL_PIECES and int(batch.lengths.sum()) <= SMALL_BYTES


def small_put(batch: WriteBatch) -> PutSmall:
    """A small put with its bytes, which are in host memory."""
    pieces = zip(batch.source.addresses.tolist(), batch.source.sizes.tolist(), strict=True)
    payload = b"".join([ctypes.string_at(address, size) for address, size in pieces])
    item = batch.item
    if not item.lengths:
        item = msgspec.structs.replace(item, lengths=pack_u64(batch.lengths))
    return PutSmall(item, payload, batch.visible, batch.direct)
