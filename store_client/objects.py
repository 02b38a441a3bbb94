"""Plain objects: key texts of any form, values of any size, in the flat keyspace of the tenant."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import InvalidKey, InvalidParams, MoonpoolError
from moonpool.schemas.keyspace import Kind, object_hash, objects_keyspace
from moonpool.schemas.messages import Locate, Presence, Present, Status
from moonpool.schemas.packed import U8, join_hashes
from moonpool.store_client.buffers import fragments_of
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.gets import Getter, Places, Wanted
from moonpool.store_client.keyspaces import KeyspaceBook
from moonpool.store_client.master import MasterLink
from moonpool.store_client.puts import PutPart, Putter
from moonpool.store_client.transports.pieces import trim

log = logging.getLogger(__name__)

KEY_BYTES_MAX = 4096
PART_OBJECTS = 512
"""Objects that go to one node together: a larger batch is spread over nodes."""

BATCH_MAX = 8192
"""Objects of one call to the servers; larger batches are cut."""


class Got(NamedTuple):
    """Outcome of reading one object into the caller's memory. `size_bytes`: of the object, where it is in the pool.
    TOO_LARGE: the memory was smaller than that, and is untouched."""

    status: Status
    size_bytes: int


class Objects:
    """The object calls of a StoreClient."""

    def __init__(
        self, tenant: str, master: MasterLink, book: KeyspaceBook, putter: Putter, getter: Getter
    ) -> None:
        self.keyspace = book.add(objects_keyspace(tenant))
        self._master = master
        self._putter = putter
        self._getter = getter

    def exist(self, keys: Sequence[str], deadline_s: float) -> list[bool]:
        """Which keys are there. Raises what the call raises."""
        hashes = hashes_of(keys)
        bits = b""
        for part in _cut(hashes):
            request = Presence(self.keyspace, join_hashes(part))
            bits += self._master.ask(request, Present, deadline_s).bits
        return [bit == 1 for bit in bits]

    def put(
        self, keys: Sequence[str], values: Fragments, deadline_s: float, visible: bool = True
    ) -> list[Status]:
        """Raises only what is wrong with the arguments. `visible`: a get that comes later finds what is OK here."""
        hashes = hashes_of(keys)
        if len(keys) != values.count:
            raise InvalidParams(field="values", value=values.count, allowed=f"{len(keys)}, one for each key")
        lengths = values.lengths()
        parts = [
            PutPart(
                keyspace=self.keyspace,
                kind=Kind.FLAT,
                rank=0,
                position=0,
                parent=b"",
                hashes=hashes[first : first + PART_OBJECTS],
                run_root=b"",
                lengths=lengths[first : first + PART_OBJECTS],
                source=values.take(np.arange(first, min(first + PART_OBJECTS, len(keys)))),
                keys=keys[first : first + PART_OBJECTS],
                visible=visible,
            )
            for first in range(0, len(keys), PART_OBJECTS)
        ]
        return [Status(status) for part in self._putter.put(parts, deadline_s) for status in part.tolist()]

    def get(self, keys: Sequence[str], deadline_s: float) -> list[bytes | None]:
        """The values; None where a key isn't there or couldn't be read."""
        hashes = hashes_of(keys)
        places = self._locate_all(hashes, deadline_s)
        if places is None:
            return [None] * len(keys)
        index = np.flatnonzero(places.generations != 0)
        values = [_uninitialised(length) for length in places.lengths[index].tolist()]
        into, _ = fragments_of([[value] for value in values], writable=False)
        statuses = self._read(hashes, places, index, into, deadline_s)
        found: list[bytes | None] = [None] * len(keys)
        for i, value, status in zip(index.tolist(), values, statuses.tolist(), strict=True):
            if status == Status.OK:
                found[i] = value
        return found

    def get_into(self, keys: Sequence[str], memory: Fragments, deadline_s: float) -> list[Got]:
        """Fills the first bytes of each object's memory."""
        hashes = hashes_of(keys)
        if len(keys) != memory.count:
            raise InvalidParams(field="buffers", value=memory.count, allowed=f"{len(keys)}, one list a key")
        places = self._locate_all(hashes, deadline_s)
        if places is None:
            return [Got(Status.FAILED, 0)] * len(keys)
        there = places.generations != 0
        fits = places.lengths <= memory.lengths()
        statuses = np.where(there, np.uint8(Status.TOO_LARGE), np.uint8(Status.MISSING))
        index = np.flatnonzero(there & fits)
        into = trim(memory.take(index), places.lengths[index])
        statuses[index] = self._read(hashes, places, index, into, deadline_s)
        sizes = np.where(there, places.lengths, 0).tolist()
        return [Got(Status(status), size) for status, size in zip(statuses.tolist(), sizes, strict=True)]

    def _locate_all(self, hashes: Sequence[bytes], deadline_s: float) -> Places | None:
        """None where the master can't be asked."""
        try:
            return self._locate(hashes, deadline_s)
        except MoonpoolError as error:
            log.debug("could not locate objects: %s", error)
            return None

    def _locate(self, hashes: Sequence[bytes], deadline_s: float) -> Places:
        parts = [
            self._getter.locate(Locate(self.keyspace, 0, hashes=join_hashes(part)), len(part), deadline_s)
            for part in _cut(hashes)
        ]
        return Places.join(parts)

    def _read(
        self,
        hashes: Sequence[bytes],
        places: Places,
        index: NDArray[np.intp],
        into: Fragments,
        deadline_s: float,
    ) -> U8:
        mine = [hashes[i] for i in index.tolist()]
        wanted = Wanted(self.keyspace, 0, mine, into, places.lengths[index])
        return self._getter.read(
            wanted, places.take(index), lambda: self._locate(mine, deadline_s), deadline_s
        )


def hashes_of(keys: Sequence[str]) -> list[bytes]:
    """Row names of key texts. Raises InvalidKey."""
    for key in keys:
        try:
            size_bytes = len(key.encode())
        except (AttributeError, UnicodeEncodeError):
            size_bytes = 0
        if not 0 < size_bytes <= KEY_BYTES_MAX:
            raise InvalidKey(key=ascii(key)[:200], allowed=f"text of 1 to {KEY_BYTES_MAX} bytes of UTF-8")
    return [object_hash(key) for key in keys]


def _cut(hashes: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [hashes[first : first + BATCH_MAX] for first in range(0, len(hashes), BATCH_MAX)]


_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)


def _uninitialised(size_bytes: int) -> bytes:
    """A bytes object to be filled before anybody sees it, as the C API allows: saves a copy of every value."""
    value: bytes = _new_bytes(None, size_bytes)
    return value
