"""A node of another host, asked through its RPC port: small objects in one exchange with its event loop.

A data lane has a thread at the other end, which costs more to wake and to let into the interpreter than these bytes.
"""

from __future__ import annotations

import ctypes

import msgspec
import numpy as np

from moonpool.schemas.errors import ProtocolError
from moonpool.schemas.header import HEADER_BYTES, HEADER_DTYPE
from moonpool.schemas.messages import (
    SMALL_BYTES,
    SMALL_OBJECTS,
    Committed,
    GetSmall,
    Hello,
    Message,
    PutSmall,
    SmallData,
    decode_from_node,
)
from moonpool.schemas.packed import U8, pack_u32, pack_u64
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.rpc.connection import ConnectionPool
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.transports.base import ReadBatch, SpecOf, WriteBatch
from moonpool.store_client.transports.pieces import coalesce
from moonpool.store_client.transports.proof import judge, sent_of
from moonpool.store_client.transports.told import call_told

SMALL_PIECES = 64
"""Of a put that is sent in one message: each is copied by itself."""


class SmallDoor:
    """Of one node. Connects when first used; any number of threads."""

    def __init__(
        self, address: str, hello: Hello, spec_of: SpecOf, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        self._node = ConnectionPool(address, hello, decode_from_node, credentials=credentials)
        self._spec_of = spec_of
        self._copier = HostCopier()

    def takes(self, batch: ReadBatch) -> bool:
        """Whether a read is small enough."""
        return len(batch.slots) <= SMALL_OBJECTS and int(batch.lengths.sum()) <= SMALL_BYTES

    def write(self, batch: WriteBatch, deadline_s: float) -> U8:
        """Of a batch that `is_small`: a Status an object. Raises MoonpoolError."""
        reply = call_told(self._node, small_put(batch), batch.item.keyspace, self._spec_of, deadline_s)
        return small_put_statuses(batch, reply, self._node.address)

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


def small_put_statuses(batch: WriteBatch, reply: Message, peer: str) -> U8:
    """What the answer says. Raises ProtocolError."""
    if not isinstance(reply, Committed) or [len(part) for part in reply.statuses] != [len(batch.lengths)]:
        raise ProtocolError(peer=peer, reason=f"{type(reply).__name__} in answer to PutSmall")
    return np.frombuffer(reply.statuses[0], dtype=np.uint8).copy()
