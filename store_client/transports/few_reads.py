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
    return not any(native.read_packed(segment.native_layout, columns, word, objects.rank, objects.verify))
