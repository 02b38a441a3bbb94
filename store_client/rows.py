"""Rows of flat keyspaces whose objects have sizes of their own: plain objects, and whatever is named like them."""

from __future__ import annotations

import ctypes
import itertools
import logging
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import InvalidParams, MoonpoolError
from moonpool.schemas.keyspace import Kind
from moonpool.schemas.messages import Locate, Presence, Present, Status
from moonpool.schemas.packed import U8, U64, all_zero, join_hashes
from moonpool.store_client.buffers import fragments_of
from moonpool.store_client.cluster import Cluster
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.gets import Getter, Places, Wanted
from moonpool.store_client.node.layout import PAGE_BYTES_MAX
from moonpool.store_client.puts import PutPart, Putter
from moonpool.store_client.transports.pieces import batches_of, trim

log = logging.getLogger(__name__)

PART_OBJECTS = 512
"""Objects that go to one node together: a larger batch is spread over nodes."""

PART_KEY_BYTES = 1 << 20
"""Key texts of those: with their hashes and sizes they travel in one frame, of which a data lane takes 2 MiB."""

UTF8_BYTES_MAX = 4
"""Of one character."""

LARGE_BYTES = 1 << 20

PART_BYTES = 32 << 20
"""Large objects that go to one node together."""

BATCH_MAX = 8192
"""Objects of one call to the servers; larger batches are cut."""


_STATUSES = list(Status)
"""By their numbers: calling Status would cost as much as the rest of an object."""


class Rows(msgspec.Struct, frozen=True, eq=False):
    """One rank of some rows. `keys`: texts that are stored beside the bytes of a put, one a row, or none."""

    keyspace: bytes
    rank: int
    hashes: Sequence[bytes]
    keys: Sequence[str] = ()


class Got(NamedTuple):
    """Outcome of reading one object into the caller's memory. `size_bytes`: of the object, where it is in the pool.
    TOO_LARGE: the memory was smaller than that, and is untouched."""

    status: Status
    size_bytes: int


class RowCalls:
    """The calls of a StoreClient that concern such rows."""

    def __init__(self, cluster: Cluster, putter: Putter, getter: Getter) -> None:
        self._cluster = cluster
        self._putter = putter
        self._getter = getter

    def exist(self, rows: Rows, deadline_s: float) -> list[bool]:
        """Which rows are there. Raises what the call raises."""
        bits = b""
        for part in _cut(rows.hashes):
            shards = self._cluster.column(rows.keyspace, part, deadline_s)
            request = Presence(rows.keyspace, join_hashes(part), rows.rank, shards=shards)
            bits += self._cluster.ask(request, Present, deadline_s).bits
        present: list[bool] = np.frombuffer(bits, dtype=np.bool_).tolist()
        return present

    def locate(self, rows: Rows, deadline_s: float, avoid: Sequence[bytes] = ()) -> Places:
        """Where they lie, and how long they are; if it can be not in these segments. Raises what the call raises."""
        count = len(rows.hashes)
        if count <= BATCH_MAX:  # the usual case
            return self._locate_part(rows, rows.hashes, count, deadline_s, avoid)
        parts = _cut(rows.hashes)
        return Places.join([self._locate_part(rows, part, len(part), deadline_s, avoid) for part in parts])

    def _locate_part(
        self, rows: Rows, part: Sequence[bytes], count: int, deadline_s: float, avoid: Sequence[bytes]
    ) -> Places:
        shards = self._cluster.column(rows.keyspace, part, deadline_s)
        request = Locate(rows.keyspace, rows.rank, hashes=join_hashes(part), shards=shards, avoid=list(avoid))
        return self._getter.locate(request, count, deadline_s)

    def put(self, rows: Rows, values: Fragments, deadline_s: float, visible: bool = True) -> list[Status]:
        """Raises only what is wrong with the arguments. `visible`: a get that comes later finds what is OK here."""
        count = len(rows.hashes)
        if count != values.count:
            raise InvalidParams(field="values", value=values.count, allowed=f"{count}, one for each key")
        lengths = values.lengths()
        parts = [
            PutPart(
                keyspace=rows.keyspace,
                kind=Kind.FLAT,
                rank=rows.rank,
                position=0,
                parent=b"",
                hashes=rows.hashes[first:end],
                run_root=b"",
                lengths=lengths[first:end],
                source=values if end - first == count else values.take(np.arange(first, end)),
                keys=rows.keys[first:end],
                visible=visible,
            )
            for first, end in itertools.pairwise(_edges(lengths, rows.keys))
        ]
        outcomes = self._putter.put(parts, deadline_s)
        return [_STATUSES[status] for part in outcomes for status in part.tolist()]

    def get(self, rows: Rows, deadline_s: float) -> list[bytes | None]:
        """The values; None where a row isn't there or couldn't be read."""
        found: list[bytes | None] = [None] * len(rows.hashes)
        places = self.locate_quietly(rows, deadline_s)
        if places is None:
            return found
        index = np.flatnonzero(places.generations != 0)
        lengths: list[int] = places.lengths[index].tolist()
        if max(lengths, default=0) > PAGE_BYTES_MAX:
            log.warning("no node has objects of %d bytes, as %s says", max(lengths), self._cluster.name)
            return found
        values = [_uninitialised(length) for length in lengths]
        into, _ = fragments_of([[value] for value in values], writable=False)
        statuses = self._read(rows, places, index, into, deadline_s)
        for i, value, status in zip(index.tolist(), values, statuses.tolist(), strict=True):
            if status == Status.OK:
                found[i] = value
        return found

    def get_into(
        self, rows: Rows, memory: Fragments, deadline_s: float, places: Places | None = None
    ) -> list[Got]:
        """Fills the first bytes of each object's memory. `places`: where the master has just said that they lie."""
        count = len(rows.hashes)
        if count != memory.count:
            raise InvalidParams(field="buffers", value=memory.count, allowed=f"{count}, one list a key")
        places = places or self.locate_quietly(rows, deadline_s)
        if places is None:
            return [Got(Status.FAILED, 0)] * count
        room = memory.lengths()
        if places.together(room.tobytes()):  # the usual case
            wanted = Wanted(rows.keyspace, rows.rank, rows.hashes, memory, room)
            again = partial(self.locate, rows, deadline_s)
            return _got(self._getter.read_together(wanted, places, again, deadline_s), room)
        there = places.generations != 0
        fits = places.lengths <= room
        statuses = np.where(there, np.uint8(Status.TOO_LARGE), np.uint8(Status.MISSING))
        index = np.flatnonzero(there & fits)
        into = memory if len(index) == count else memory.take(index)
        if not np.array_equal(places.lengths[index], into.lengths()):
            into = trim(into, places.lengths[index])
        statuses[index] = self._read(rows, places, index, into, deadline_s)
        return _got(statuses, np.where(there, places.lengths, 0))

    def locate_quietly(self, rows: Rows, deadline_s: float) -> Places | None:
        """None where the master can't be asked."""
        try:
            return self.locate(rows, deadline_s)
        except MoonpoolError as error:
            log.debug("could not locate objects: %s", error)
            return None

    def _read(
        self, rows: Rows, places: Places, index: NDArray[np.intp], into: Fragments, deadline_s: float
    ) -> U8:
        if len(index) < len(rows.hashes):
            rows = Rows(rows.keyspace, rows.rank, [rows.hashes[i] for i in index.tolist()])
            places = places.take(index)
        return self._read_all(rows, places, into, deadline_s)

    def _read_all(self, rows: Rows, places: Places, into: Fragments, deadline_s: float) -> U8:
        wanted = Wanted(rows.keyspace, rows.rank, rows.hashes, into, places.lengths)
        return self._getter.read(wanted, places, partial(self.locate, rows, deadline_s), deadline_s)


_make_got = partial(tuple.__new__, Got)
"""From a pair: what Got itself does in twice the time."""


def _got(statuses: U8, sizes: NDArray[np.generic]) -> list[Got]:
    each = sizes.tolist()
    if all_zero(statuses):
        return all_got(each)
    return list(map(_make_got, zip(map(_STATUSES.__getitem__, statuses.tolist()), each, strict=True)))


def all_got(each: list[int]) -> list[Got]:
    """Objects of these sizes that have all come."""
    if each and each.count(each[0]) == len(each):
        # As blocks are: a thousand new tuples would set the garbage collector off.
        return [Got(Status.OK, each[0])] * len(each)
    return list(map(_make_got, zip(repeat(Status.OK), each, strict=False)))


def _edges(lengths: U64, keys: Sequence[str]) -> list[int]:
    """Where a batch is cut: objects that are large go with their equals alone, so that no small one needs a place of
    their size, and not too many bytes to one node."""
    if not len(lengths):
        return [0]
    short = sum(map(len, keys)) * UTF8_BYTES_MAX <= PART_KEY_BYTES
    if short and int(lengths.max()) < LARGE_BYTES:  # the usual case
        return [*range(0, len(lengths), PART_OBJECTS), len(lengths)]
    large = lengths >= LARGE_BYTES
    changes = np.flatnonzero((large[1:] | large[:-1]) & (lengths[1:] != lengths[:-1])) + 1
    key_bytes = np.array(list(map(len, keys)) or [0] * len(lengths), dtype=np.uint64) * UTF8_BYTES_MAX
    edges = [0]
    for first, end in itertools.pairwise([0, *changes.tolist(), len(lengths)]):
        alike = slice(first, end)
        limits = (lengths[alike], PART_BYTES) if large[first] else (key_bytes[alike], PART_KEY_BYTES)
        edges += [first + part.stop for part in batches_of(limits[0], PART_OBJECTS, limits[1])]
    return edges


def _cut(hashes: Sequence[bytes]) -> list[Sequence[bytes]]:
    if 0 < len(hashes) <= BATCH_MAX:  # the usual case
        return [hashes]
    return [hashes[first : first + BATCH_MAX] for first in range(0, len(hashes), BATCH_MAX)]


_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)


def _uninitialised(size_bytes: int) -> bytes:
    """A bytes object to be filled before anybody sees it, as the C API allows: saves a copy of every value."""
    value: bytes = _new_bytes(None, size_bytes)
    return value
