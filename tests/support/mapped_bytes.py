"""A mapped segment's bytes, for tests that look at them or spoil them."""

from __future__ import annotations

from moonpool.schemas.packed import U8
from moonpool.store_client.transports.mapped import MappedSegment


def mapped_bytes(segment: MappedSegment, address: int, length: int) -> U8:
    """Not copied."""
    first = address - segment.address
    return segment._bytes[first : first + length]
