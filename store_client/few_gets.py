"""Gets of a few plain objects out of the memory of this host: the short way, without arrays.

Beside other processes most of a short call's time goes into code that has left the caches: the batches' way (rows.py, gets.py)
runs through twice as much of it. Whatever is out of the ordinary goes on there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import Any

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.messages import Locate, Located, Status
from moonpool.schemas.packed import PackedHashes
from moonpool.store_client.buffers import multi_buffers
from moonpool.store_client.cluster import Cluster
from moonpool.store_client.gets import Places
from moonpool.store_client.native import KEY_HASH_BYTES, hash_keys, packed_pieces, unpacked_pieces
from moonpool.store_client.nodes import Nodes
from moonpool.store_client.objects import KEY_BYTES_MAX, rows_of
from moonpool.store_client.rows import Got, RowCalls, Rows
from moonpool.store_client.transports.base import FewObjects

log = logging.getLogger(__name__)

FEW = 16
"""Objects of one call."""

FEW_BYTES = 1 << 20
"""Of all of them: what is more takes so long to copy that the way to it doesn't matter."""


class ObjectGets:
    """A client's gets of plain objects into given memory."""

    def __init__(self, cluster: Cluster, nodes: Nodes, rows: RowCalls, *, host: bool, verify: bool) -> None:
        """`host`: whether the memory is the host's. `verify`: compare checksums."""
        self._cluster = cluster
        self._nodes = nodes
        self._rows = rows
        self._host = host
        self._verify = verify

    def get_pieces(
        self,
        keyspace: bytes,
        keys: Sequence[str],
        addresses: Sequence[Sequence[Any]],
        sizes: Sequence[Sequence[int]] | None,
        deadline_s: float,
    ) -> list[Got]:
        """As RowCalls.get_into, into several pieces each, as `multi_buffers` takes them."""
        objects = self._few(keyspace, keys, addresses, sizes) if sizes is not None else None
        if objects is None:
            fragments, keep = multi_buffers(addresses, sizes, writable=True)
            outcome = self._rows.get_into(rows_of(keyspace, keys), fragments, deadline_s)
            del keep
            return outcome
        try:
            located = self._locate(keyspace, objects.hashes, deadline_s)
            if self._read(objects, located, deadline_s):
                each = memoryview(objects.lengths).cast("Q")
                return list(map(_make_got, zip(repeat(Status.OK), each, strict=False)))
            places = Places(located, len(keys), self._cluster.name)
        except MoonpoolError as error:
            log.debug("could not locate objects: %s", error)
            return [Got(Status.FAILED, 0)] * len(keys)
        rows = Rows(keyspace, 0, PackedHashes(objects.hashes, KEY_HASH_BYTES), keys)
        memory = unpacked_pieces(objects.addresses, objects.sizes, objects.offsets, objects.lengths)
        return self._rows.get_into(rows, memory, deadline_s, places)

    def _few(
        self,
        keyspace: bytes,
        keys: Sequence[str],
        addresses: Sequence[Sequence[Any]],
        sizes: Sequence[Sequence[int]],
    ) -> FewObjects | None:
        """None where they go the batches' way, which also says what is wrong with the arguments."""
        if not (self._host and 0 < len(keys) <= FEW):
            return None
        packed, hashes = packed_pieces(addresses, sizes), hash_keys(keys, KEY_BYTES_MAX)
        if packed is None or isinstance(hashes, int) or len(packed[3]) != 8 * len(keys):
            return None
        size_bytes = sum(memoryview(packed[3]).cast("Q"))
        if size_bytes > FEW_BYTES:
            return None
        return FewObjects(keyspace, hashes, *packed, size_bytes, self._verify)

    def _locate(self, keyspace: bytes, hashes: bytes, deadline_s: float) -> Located:
        shards = b""
        if self._cluster.shards(deadline_s) > 1:
            shards = self._cluster.column(keyspace, PackedHashes(hashes, KEY_HASH_BYTES), deadline_s)
        return self._cluster.ask(Locate(keyspace, 0, hashes=hashes, shards=shards), Located, deadline_s)

    def _read(self, objects: FewObjects, located: Located, deadline_s: float) -> bool:
        """Whether all have come. What lies in several segments, or has another length, is left alone."""
        count = len(objects.lengths) // 8
        if (
            len(located.segments) != 1
            or located.lengths != objects.lengths
            or located.which != bytes(2 * count)
            or len(located.slots) != 4 * count
            or len(located.generations) != 8 * count
        ):
            return False
        link = self._nodes.find(located.segments[0], deadline_s)
        return link is not None and link.read_few(objects, located, deadline_s)


_make_got = partial(tuple.__new__, Got)
"""From a pair: what Got itself does in twice the time."""
