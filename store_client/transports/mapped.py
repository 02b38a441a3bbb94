"""A segment file of this host, mapped into this process."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import TransferFailed
from moonpool.schemas.header import SLOT_INDEX_BITS, Headers
from moonpool.schemas.packed import U32, U64
from moonpool.store_client.huge_pages import FileMapping
from moonpool.store_client.node.headers import HeaderTable
from moonpool.store_client.node.layout import HEAD_BYTES, Head, page_table

POPULATE_BYTES = 256 << 20
"""At a time: whoever closes the mapping waits no longer than for this."""


class MappedSegment:
    """Read and write access to a segment's pages, read access to its headers."""

    def __init__(self, path: str, segment: bytes) -> None:
        """Raises TransferFailed where the file isn't there, or isn't that segment."""
        self.path = path
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise TransferFailed(peer=path, reason=f"cannot open the segment: {error.strerror}") from error
        try:
            self._mapping = self._map(fd, segment)
        finally:
            os.close(fd)
        self._bytes = self._mapping.bytes
        self.address = self._mapping.address
        buffer = self._mapping.buffer
        head = Head.read(buffer[:HEAD_BYTES])
        assert head is not None
        self.layout = head.layout
        # What may be pinned or populated. Headers are a sparse file: touching them all would take an eighth of the
        # pool's memory again, which nobody has set aside.
        self.data_address = self.address + head.layout.data_offset
        self.data_bytes = head.layout.capacity_bytes
        self._page_table = page_table(buffer, self.layout)
        self.native_layout: U64 = head.layout.native(self.address)
        self._headers = HeaderTable(buffer, self.layout)

    def _map(self, fd: int, segment: bytes) -> FileMapping:
        size_bytes = os.fstat(fd).st_size
        head = Head.read(os.pread(fd, HEAD_BYTES, 0))
        if head is None or head.segment != segment or head.layout.file_bytes > size_bytes:
            raise TransferFailed(peer=self.path, reason="the file is not the segment that was announced")
        return FileMapping(fd, size_bytes)

    def places(self, slots: U32, lengths: U64) -> tuple[U64, NDArray[np.bool_]]:
        """Address of each slot's first byte, and whether an object of that length lies inside it (else: any)."""
        offsets, inside = self.layout.find(slots, lengths, self._page_table)
        return offsets.astype(np.uint64) + np.uint64(self.address), inside

    def slot_bytes(self, slots: bytes) -> int:
        """Size of the first of these slots (u32), which this process holds, so that its page can't be cut anew; 0 where there
        is no such slot."""
        page = int.from_bytes(slots[:4], "little") >> SLOT_INDEX_BITS
        return int(self._page_table[page]) if page < self.layout.page_count else 0

    def headers(self, slots: U32) -> Headers:
        """Snapshots of headers, taken after every load that came before this call. Slots must lie inside."""
        return self._headers.proof(self.layout.header_rows(slots))

    def populate(self, stopped: Callable[[], bool]) -> None:
        """Fills this process's page tables, so that first reads don't fault page by page. Old kernels can't."""
        for first in range(0, self.data_bytes, POPULATE_BYTES):
            size_bytes = min(POPULATE_BYTES, self.data_bytes - first)
            if stopped() or not self._mapping.populate(self.layout.data_offset + first, size_bytes):
                return

    def close(self) -> None:
        """Unmaps. The caller knows that no copy is under way."""
        del self._bytes, self._page_table, self._headers
        self._mapping.close()
