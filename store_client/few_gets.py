"""Gets of a few objects out of the memory of this host: the short way, without arrays.

Beside other processes most of a short call's time goes into code that has left the caches: the batches' way (rows.py, gets.py)
runs through twice as much of it. Whatever is out of the ordinary goes on there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moonpool.schemas.keyspace import HASH_SIZES
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import PackedHashes, join_hashes
from moonpool.store_client.buffers import multi_buffers
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.gets import Places
from moonpool.store_client.native import HOT, KEY_HASH_BYTES, hash_keys, packed_pieces, unpacked_pieces
from moonpool.store_client.nodes import Nodes
from moonpool.store_client.objects import KEY_BYTES_MAX, rows_of
from moonpool.store_client.rows import Got, RowCalls, Rows, all_got
from moonpool.store_client.transports.base import FewObjects

FEW = 16
"""Objects of one call."""

FEW_BYTES = 1 << 20
"""Of all of them: what is more takes so long to copy that the way to it doesn't matter."""


class ObjectGets:
    """A client's gets of rows into given memory."""

    def __init__(self, nodes: Nodes, rows: RowCalls, *, host: bool, verify: bool) -> None:
        """`host`: whether the memory is the host's. `verify`: compare checksums."""
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
        rows = Rows(keyspace, 0, PackedHashes(objects.hashes, KEY_HASH_BYTES), keys)
        return self._get_few(rows, objects, deadline_s)

    def get_rows_into(self, rows: Rows, memory: Fragments, deadline_s: float) -> list[Got]:
        """As RowCalls.get_into, into the first bytes of each one's memory."""
        objects = self._few_rows(rows, memory)
        if objects is None:
            return self._rows.get_into(rows, memory, deadline_s)
        return self._get_few(rows, objects, deadline_s)

    def _get_few(self, rows: Rows, objects: FewObjects, deadline_s: float) -> list[Got]:
        places = self._rows.locate_quietly(rows, deadline_s)
        if places is None:
            return [Got(Status.FAILED, 0)] * len(rows.hashes)
        if self._read(objects, places, deadline_s):
            return all_got(memoryview(objects.lengths).cast("Q").tolist())
        memory = unpacked_pieces(objects.addresses, objects.sizes, objects.offsets, objects.lengths)
        return self._rows.get_into(rows, memory, deadline_s, places)

    def _few(
        self,
        keyspace: bytes,
        keys: Sequence[str],
        addresses: Sequence[Sequence[Any]],
        sizes: Sequence[Sequence[int]],
    ) -> FewObjects | None:
        """Plain objects. None where they go the batches' way, which also says what is wrong with the arguments."""
        if not (self._host and 0 < len(keys) <= FEW):
            return None
        packed, hashes = packed_pieces(addresses, sizes), hash_keys(keys, KEY_BYTES_MAX)
        if packed is None or isinstance(hashes, int) or len(packed[3]) != 8 * len(keys):
            return None
        size_bytes = sum(memoryview(packed[3]).cast("Q"))
        if size_bytes > FEW_BYTES:
            return None
        return FewObjects(keyspace, 0, hashes, *packed, size_bytes, self._verify)

    def _few_rows(self, rows: Rows, memory: Fragments) -> FewObjects | None:
        """The same of rows of any flat keyspace."""
        count = len(rows.hashes)
        if not (HOT and self._host and 0 < count == memory.count <= FEW):
            return None
        hashes, lengths = join_hashes(rows.hashes), memory.lengths()
        size_bytes = sum(lengths.tolist())
        if size_bytes > FEW_BYTES or len(hashes) not in [count * hash_bytes for hash_bytes in HASH_SIZES]:
            return None
        pieces = (memory.addresses.tobytes(), memory.sizes.tobytes(), memory.offsets.tobytes())
        return FewObjects(
            rows.keyspace, rows.rank, hashes, *pieces, lengths.tobytes(), size_bytes, self._verify
        )

    def _read(self, objects: FewObjects, places: Places, deadline_s: float) -> bool:
        """Whether all have come. What lies in several segments, or has another length, is left alone."""
        if not places.together(objects.lengths):
            return False
        link = self._nodes.find(places.segments[0], deadline_s)
        return link is not None and link.read_few(objects, places.located, deadline_s)
