"""Reads of a few objects from a mapped segment, as packed columns: what shm.py does of any with arrays."""

from __future__ import annotations

from moonpool.schemas.header import keyspace_word
from moonpool.schemas.messages import Located
from moonpool.store_client import native
from moonpool.store_client.transports.base import FewObjects
from moonpool.store_client.transports.mapped import MappedSegment


def read_few(segment: MappedSegment, objects: FewObjects, located: Located) -> bool:
    """Whether all have come, as headers that are read behind the bytes say (I3), and checksums where they are compared and known.
    Where not, some of the memory may have been written to. Only where native.HOT."""
    memory = (objects.addresses, objects.sizes, objects.offsets)
    columns = (located.slots, objects.lengths, *memory, located.generations, objects.hashes)
    word = keyspace_word(objects.keyspace)
    found, starts, checksums = native.read_packed(
        segment.native_layout, columns, word, objects.rank, objects.verify
    )
    if any(found):
        return False
    if starts is None or checksums is None:
        return True
    rows = zip(*(memoryview(one).cast("Q") for one in (starts, objects.lengths, checksums)), strict=True)
    return all(not told or segment.checksum(start, length) == told for start, length, told in rows)
