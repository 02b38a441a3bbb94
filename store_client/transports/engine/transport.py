"""Any node with a transfer engine: reads out of its segment by address, puts that it reads out of ours (I4).

The caller's memory is written only by the copier, after a transfer is complete and validated: see landing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import TransferFailed
from moonpool.schemas.header import HEADER_BYTES, HEADER_DTYPE, Headers, holds, keyspace_word
from moonpool.schemas.messages import (
    Granted,
    Hello,
    NodeInfo,
    PullWrite,
    Status,
    decode_from_node,
)
from moonpool.schemas.packed import U8, U32, U64, pack_u64
from moonpool.store_client.checksums import mismatches
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.gate import Gate
from moonpool.store_client.rpc.connection_pool import ConnectionPool
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.transports.attempts import attempt_all
from moonpool.store_client.transports.base import ReadBatch, SpecOf, WriteBatch
from moonpool.store_client.transports.engine.access import EngineAccess
from moonpool.store_client.transports.engine.address import EngineAddress
from moonpool.store_client.transports.engine.calls import CALLS_AT_ONCE, Calls
from moonpool.store_client.transports.engine.engine import Outcome
from moonpool.store_client.transports.engine.landing import PAYLOAD_BYTES, LandingBlock
from moonpool.store_client.transports.engine.remote_segment import RemoteSegment
from moonpool.store_client.transports.pieces import batches_of, coalesce, slot_side, split_evenly
from moonpool.store_client.transports.told import call_told
from moonpool.store_client.workers import Workers

PART_BYTES = 16 << 20
"""Transferred together; one part is copied out while the next one is on its way."""

PART_OBJECTS = 4096
SHARE_BYTES_MIN = 1 << 20
ATTEMPTS = 2


class EngineTransport:
    """The Transport of a node whose engine is open. Device memory is reached by the copier."""

    name = "mooncake"
    lands_late = False  # in memory of the caller: what is late finds a hole
    door = None  # the node pulls whatever is written

    def __init__(
        self,
        info: NodeInfo,
        hello: Hello,
        access: EngineAccess,
        spec_of: SpecOf,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """Connects when first used. Raises InvalidParams (an address that is none)."""
        self._peer = info.node
        self._page_bytes = info.page_bytes
        self._access = access
        self._copier = access.copier
        self._spec_of = spec_of
        self._segment = RemoteSegment(info)
        self._table: U32 | None = None
        session = EngineAddress.parse(info.engine_address).session
        self._calls = Calls(access.engine, access.turns, session)
        self._node = ConnectionPool(info.rpc_address, hello, decode_from_node, credentials=credentials)
        self._workers = Workers(CALLS_AT_ONCE, "moonpool-mooncake")
        self._gate = Gate(f"the mooncake transport of {info.node}")

    def read(self, batch: ReadBatch, deadline_s: float) -> U8:
        """See Transport."""
        statuses = np.full(len(batch.slots), Status.FAILED, dtype=np.uint8)
        fits = batch.lengths <= PAYLOAD_BYTES
        statuses[~fits] = Status.TOO_LARGE
        fitting = np.flatnonzero(fits)

        def share(objects: NDArray[np.intp]) -> None:
            for part in batches_of(batch.lengths[objects], PART_OBJECTS, PART_BYTES):
                index = objects[part]
                statuses[index] = self._read_part(batch.part(index), deadline_s)

        shares = split_evenly(batch.lengths[fitting], CALLS_AT_ONCE, SHARE_BYTES_MIN)
        with self._gate:
            tasks = [partial(share, fitting[group]) for group in shares]
            attempt_all(self._workers, self._peer, tasks, deadline_s)
        return statuses

    def write(self, batches: Sequence[WriteBatch], deadline_s: float) -> list[U8]:
        """See Transport."""
        statuses = [np.full(batch.source.count, Status.FAILED, dtype=np.uint8) for batch in batches]

        def share(objects: NDArray[np.intp]) -> None:
            for i in objects.tolist():
                statuses[i] = self._write_one(batches[i], deadline_s)

        totals = np.array([int(batch.lengths.sum()) for batch in batches], dtype=np.uint64)
        with self._gate:
            shares = split_evenly(totals, CALLS_AT_ONCE, SHARE_BYTES_MIN)
            attempt_all(self._workers, self._peer, [partial(share, group) for group in shares], deadline_s)
        return statuses

    def prepare(self) -> None:
        """See Transport: a peer is quick to reach."""

    def close(self) -> None:
        """See Transport."""
        if self._gate.forked or not self._gate.close():
            return
        self._node.close()
        self._gate.wait_empty()
        self._workers.close()
        self._calls.close()

    # ------------------------------------------------------------ reading

    def _read_part(self, batch: ReadBatch, deadline_s: float) -> U8:
        """Payloads, then headers, then the copy to where the caller wants what they prove."""
        if self._calls.stuck:
            raise TransferFailed(peer=self._peer, reason="an earlier call to its engine is still under way")
        with self._access.landing.block(deadline_s) as block:
            starts = np.uint64(block.address) + np.cumsum(batch.lengths, dtype=np.uint64) - batch.lengths
            there = self._fetch_payloads(batch, block, starts, deadline_s)
            statuses = np.full(len(batch.slots), Status.MISSING, dtype=np.uint8)
            headers = self._fetch_headers(batch.slots[there], block, deadline_s)
            right = holds(
                headers,
                batch.generations[there],
                keyspace_word(batch.keyspace),
                batch.rank,
                batch.hashes[there],
                batch.lengths[there],
            )
            good = there[right]
            statuses[good] = Status.OK
            if batch.verify and not self._copier.device:
                landed = Fragments.grid(starts[good].reshape(-1, 1), batch.lengths[good].reshape(-1, 1))
                statuses[good[mismatches(landed, headers["checksum"][right])]] = Status.CORRUPT
                good = good[statuses[good] == Status.OK]
            into = batch.into.take(good)
            self._copier.to_engine(*coalesce(into.addresses, slot_side(into, starts[good]), into.sizes))
        return statuses

    def _fetch_payloads(
        self, batch: ReadBatch, block: LandingBlock, starts: U64, deadline_s: float
    ) -> NDArray[np.intp]:
        """Fills the block; returns which objects lie inside a page. The page table travels with the payloads: while a
        slot keeps its generation its page isn't cut anew, so that the table is right for every object that the
        headers, read afterwards, prove."""
        segment = self._segment
        table = self._table
        if table is None or not segment.places(batch.slots, batch.lengths, table)[1].all():
            table = self._fetch(block, starts[:0], starts[:0], starts[:0], deadline_s)
        for _ in range(ATTEMPTS):
            places, inside = segment.places(batch.slots, batch.lengths, table)
            there = np.flatnonzero(inside)
            pieces = coalesce(starts[there], places[there], batch.lengths[there])
            before, table = table, self._fetch(block, *pieces, deadline_s)
            if segment.same_pages(batch.slots, before, table):
                return there
        raise TransferFailed(peer=self._peer, reason="its pages were cut anew twice meanwhile")

    def _fetch(self, block: LandingBlock, into: U64, source: U64, sizes: U64, deadline_s: float) -> U32:
        """Moves pieces, and the segment's head with them; returns its page table."""
        size_bytes = self._segment.head_bytes
        self._transfer(
            block,
            np.append(into, np.uint64(block.extra)),
            np.append(source, np.uint64(self._segment.base)),
            np.append(sizes, np.uint64(size_bytes)),
            deadline_s,
        )
        table = self._segment.table_in(block.view(block.extra, size_bytes))
        if table is None:
            raise TransferFailed(peer=self._peer, reason="another segment lies at its address")
        self._table = table
        return table

    def _fetch_headers(self, slots: U32, block: LandingBlock, deadline_s: float) -> Headers:
        """Snapshots of headers, taken after everything that was moved before (I3)."""
        size_bytes = len(slots) * HEADER_BYTES
        if size_bytes:
            into = np.uint64(block.extra) + np.arange(0, size_bytes, HEADER_BYTES, dtype=np.uint64)
            sizes = np.full(len(slots), HEADER_BYTES, dtype=np.uint64)
            pieces = coalesce(into, self._segment.header_places(slots), sizes)
            self._transfer(block, *pieces, deadline_s)
        return np.frombuffer(block.view(block.extra, size_bytes).tobytes(), dtype=HEADER_DTYPE)

    def _transfer(self, block: LandingBlock, into: U64, source: U64, sizes: U64, deadline_s: float) -> None:
        block.lost = True
        outcome = self._calls.read(into, source, sizes, deadline_s)
        block.lost = outcome is Outcome.UNCERTAIN
        if outcome is not Outcome.LANDED:
            raise TransferFailed(peer=self._peer, reason=outcome.value)

    # ------------------------------------------------------------ writing

    def _write_one(self, batch: WriteBatch, deadline_s: float) -> U8:
        total = int(batch.lengths.sum())
        if total > PAYLOAD_BYTES or int(batch.lengths.max(initial=0)) > self._page_bytes:
            return np.full(batch.source.count, Status.TOO_LARGE, dtype=np.uint8)
        access, source = self._access, batch.source
        with access.landing.block(deadline_s) as block, access.guards.guard() as (guard, token):
            starts = np.uint64(block.address) + np.cumsum(batch.lengths, dtype=np.uint64) - batch.lengths
            host, engine, sizes = coalesce(slot_side(source, starts), source.addresses, source.sizes)
            self._copier.from_engine(host, engine, sizes)
            request = PullWrite(
                item=msgspec.structs.replace(batch.item, lengths=pack_u64(batch.lengths)),
                engine_address=str(access.engine.address),
                addresses=pack_u64([block.address]),
                sizes=pack_u64([total]),
                guard_address=guard,
                token=token,
                visible=batch.visible,
            )
            granted = call_told(self._node, request, request.item.keyspace, self._spec_of, deadline_s)
        if not isinstance(granted, Granted) or len(granted.statuses) != source.count:
            raise TransferFailed(peer=self._peer, reason=f"{type(granted).__name__} to PullWrite")
        return np.frombuffer(granted.statuses, dtype=np.uint8).copy()
