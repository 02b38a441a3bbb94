"""Puts of a few small plain objects, one message with their bytes to one node: the short way, without arrays.

What the batches' way (puts.py) sets up for a thousand objects takes longer than all the rest of one. Whatever is out of the
ordinary goes on there.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.keyspace import Kind
from moonpool.schemas.messages import (
    AHEAD_SLOTS,
    SMALL_BYTES,
    BeginItem,
    PutItem,
    PutSmall,
    PutStart,
    PutStarted,
    Status,
)
from moonpool.schemas.packed import U8, U64, PackedHashes, join_hashes, pack_u64, u64s
from moonpool.schemas.runs import shard_of
from moonpool.store_client import permits
from moonpool.store_client.buffers import Buffer, fragments_of, multi_buffers
from moonpool.store_client.cluster import Cluster
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.native import PIECES_MAX, gather, hash_keys
from moonpool.store_client.nodes import Nodes
from moonpool.store_client.objects import KEY_BYTES_MAX, rows_of
from moonpool.store_client.puts import PutPart, Putter
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.rows import RowCalls, Rows
from moonpool.store_client.transports.ahead import key_bytes
from moonpool.store_client.transports.base import WriteBatch

log = logging.getLogger(__name__)

FEW = 16
"""Objects of one call."""

_STATUSES = list(Status)


class ObjectPuts:
    """A client's puts of plain objects."""

    def __init__(self, cluster: Cluster, nodes: Nodes, putter: Putter, rows: RowCalls, *, host: bool) -> None:
        """`host`: whether the objects lie in host memory."""
        self._cluster = cluster
        self._nodes = nodes
        self._putter = putter
        self._rows = rows
        self._host = host

    def put(
        self, keyspace: bytes, keys: Sequence[str], values: Sequence[Buffer], deadline_s: float
    ) -> list[Status]:
        """As RowCalls.put."""
        if self._host and 0 < len(keys) == len(values) <= FEW and all(type(one) is bytes for one in values):
            payload = values[0] if len(values) == 1 else b"".join(values)
            if len(payload) <= SMALL_BYTES:
                lengths = b"".join([len(value).to_bytes(8, "little") for value in values])
                few = self._put_keys(keyspace, keys, payload, lengths, deadline_s)
                if few is not None:
                    return few
        fragments, keep = fragments_of([[value] for value in values], writable=False, what="values")
        statuses = self._put_direct(keyspace, keys, fragments, deadline_s)
        if statuses is None:
            statuses = self._rows.put(rows_of(keyspace, keys), fragments, deadline_s)
        del keep
        return statuses

    def put_pieces(
        self,
        keyspace: bytes,
        keys: Sequence[str],
        addresses: Sequence[Sequence[Any]],
        sizes: Sequence[Sequence[int]] | None,
        deadline_s: float,
    ) -> list[Status]:
        """The same of objects in several pieces each, as `multi_buffers` takes them."""
        if self._host and 0 < len(keys) <= FEW and sizes is not None:
            gathered = gather(addresses, sizes, SMALL_BYTES)
            if gathered is not None and len(gathered[1]) == 8 * len(keys):
                few = self._put_keys(keyspace, keys, *gathered, deadline_s)
                if few is not None:
                    return few
        fragments, keep = multi_buffers(addresses, sizes, writable=False)
        statuses = self._put_direct(keyspace, keys, fragments, deadline_s)
        if statuses is None:
            statuses = self._rows.put(rows_of(keyspace, keys), fragments, deadline_s)
        del keep
        return statuses

    def put_rows(self, rows: Rows, values: Fragments, deadline_s: float) -> list[Status]:
        """The same of rows of any flat keyspace."""
        count = len(rows.hashes)
        few = 0 < count == values.count <= FEW and len(rows.keys) in (0, count)
        if self._host and few and len(values.sizes) <= PIECES_MAX:
            sizes: list[int] = values.sizes.tolist()
            hashes = join_hashes(rows.hashes)
            shard = self._shard(rows.keyspace, hashes, count, deadline_s)
            if shard is not None and sum(sizes) <= SMALL_BYTES:
                payload = b"".join(map(ctypes.string_at, values.addresses.tolist(), sizes))
                lengths, keys = pack_u64(values.lengths()), list(rows.keys)
                item = BeginItem(rows.keyspace, rows.rank, 0, b"", hashes, lengths, keys, shard)
                return self._put_few(item, payload, deadline_s)
        return self._rows.put(rows, values, deadline_s)

    # ------------------------------------------------------------ a few small ones

    def _put_keys(
        self, keyspace: bytes, keys: Sequence[str], payload: bytes, lengths: bytes, deadline_s: float
    ) -> list[Status] | None:
        """`payload`: all objects back to back. None, and nothing was done: they go the batches' way."""
        hashes = hash_keys(keys, KEY_BYTES_MAX)
        if isinstance(hashes, int):
            return None
        shard = self._shard(keyspace, hashes, len(keys), deadline_s)
        if shard is None:
            return None
        item = BeginItem(keyspace, 0, 0, b"", hashes, lengths, list(keys), shard)
        return self._put_few(item, payload, deadline_s)

    def _put_few(self, item: BeginItem, payload: bytes, deadline_s: float) -> list[Status]:
        count = len(item.lengths) // 8
        # What is named twice is asked for: the master says BUSY of the second.
        if count == 1 or len(set(_hashes(item))) == count:
            rows = permits.Rows(item.keyspace, item.rank, item.shard)
            segment = self._putter.permits.segment(rows, len(payload), time.monotonic())
            link = None if segment is None else self._nodes.find(segment, deadline_s)
            message = PutSmall(item, payload, True, True)
            told = None if link is None else link.put_small(message, deadline_s)
            if told is not None:
                return self._said(item, payload, told, deadline_s)
        return self._ask_and_put(item, payload, deadline_s)

    def _shard(self, keyspace: bytes, hashes: bytes, count: int, deadline_s: float) -> int | None:
        """Of all of them; None where they may have several, or nobody can say: the batches' way finds out."""
        try:
            shards = self._cluster.shards(deadline_s)
        except MoonpoolError:
            return None
        if shards == 1:
            return 0
        return shard_of(keyspace, hashes, shards) if count == 1 else None

    def _put_direct(
        self, keyspace: bytes, keys: Sequence[str], source: Fragments, deadline_s: float
    ) -> list[Status] | None:
        """Without asking a master: into slots that the node has granted ahead, or over a lane. None, and nothing was done:
        they go the batches' way."""
        if not 0 < source.count == len(keys) <= AHEAD_SLOTS:
            return None
        lengths, hashes = source.lengths(), hash_keys(keys, KEY_BYTES_MAX)
        if isinstance(hashes, int) or len(set(keys)) < len(keys):
            return None
        shard = self._shard(keyspace, hashes, len(keys), deadline_s)
        if shard is None:
            return None
        rows, size_bytes = permits.Rows(keyspace, 0, shard), int(lengths.sum())
        segment = self._putter.permits.segment(rows, size_bytes, time.monotonic())
        link = None if segment is None else self._nodes.find(segment, deadline_s)
        if link is None:
            return None
        item = BeginItem(keyspace, 0, 0, b"", hashes, lengths.tobytes(), list(keys), shard)
        statuses = link.put_direct(WriteBatch(item, lengths, source, True, True), deadline_s)
        if statuses is None:
            return None
        return self._said(item, source, statuses, deadline_s)

    def _said(
        self, item: BeginItem, payload: bytes | Fragments, told: bytes, deadline_s: float
    ) -> list[Status]:
        """The end of a direct put."""
        if not any(told):  # the usual case
            return [Status.OK] * len(told)
        statuses = np.frombuffer(told, dtype=np.uint8).copy()
        return _named(self._putter.ask_again([_part(item, payload)], [statuses], deadline_s))

    def _ask_and_put(self, item: BeginItem, payload: bytes, deadline_s: float) -> list[Status]:
        """Where the master says GO of all, and the node takes what is small; else on the batches' way."""
        lengths = u64s(item.lengths).tolist()
        largest = max(map(int.__add__, lengths, key_bytes(item.keys)) if item.keys else lengths)
        asked = PutItem(item.keyspace, item.rank, 0, b"", item.hashes, largest, item.shard)
        asked_s = time.monotonic()
        try:
            started = self._cluster.ask(PutStart([asked]), PutStarted, deadline_s)
        except MoonpoolError as error:
            log.debug("put refused: %s", error)
            return [Status.FAILED] * len(lengths)
        if started.answers == [bytes(len(lengths))] and len(started.segments) == 1:
            segment = started.segments[0]
            link = self._nodes.find(segment, deadline_s)
            message = PutSmall(item, payload, True)
            told = None if link is None else link.put_small(message, deadline_s)
            if told is not None and told.count(Status.FAILED) < len(
                told
            ):  # else the node may have other doors now
                for direct_ms in started.direct_ms[:1]:
                    rows = permits.Rows(item.keyspace, item.rank, item.shard)
                    self._putter.permits.give(rows, segment, asked_s, direct_ms, started.direct_bytes)
                statuses = np.frombuffer(told, dtype=np.uint8)
                if statuses.any():
                    promised = np.ones(len(statuses), dtype=np.bool_)
                    self._putter.abandon([_part(item, payload)], [promised], [statuses], deadline_s)
                return _named([statuses])
        return _named(self._putter.put_as_told([_part(item, payload)], started, asked_s, deadline_s))


def _part(item: BeginItem, payload: bytes | Fragments) -> PutPart:
    """For the batches' way."""
    lengths = u64s(item.lengths)
    source = payload if isinstance(payload, Fragments) else _back_to_back(payload, lengths)
    return PutPart(
        keyspace=item.keyspace,
        kind=Kind.FLAT,
        rank=item.rank,
        position=0,
        parent=b"",
        hashes=_hashes(item),
        run_root=b"",
        lengths=lengths,
        source=source,
        keys=item.keys,
        visible=True,
        shard=item.shard,
    )


def _hashes(item: BeginItem) -> PackedHashes:
    return PackedHashes(item.hashes, len(item.hashes) // (len(item.lengths) // 8))


def _back_to_back(payload: bytes, lengths: U64) -> Fragments:
    starts = np.uint64(address_of(np.frombuffer(payload, dtype=np.uint8))) + np.cumsum(lengths) - lengths
    return Fragments(starts, lengths, np.arange(len(lengths) + 1, dtype=np.int64))


def _named(statuses: Sequence[U8]) -> list[Status]:
    """Of one part."""
    return [_STATUSES[status] for status in statuses[0].tolist()]
