"""A segment in another process's memory, by address: where its slots and headers are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.header import HEADER_BYTES
from moonpool.schemas.messages import NodeInfo
from moonpool.schemas.packed import U8, U32, U64
from moonpool.store_client.node.layout import PAGE_TABLE_OFFSET, Head, Layout, page_table


class RemoteSegment:
    """Its layout follows from what the node announced; the slot size of each page only from its head."""

    def __init__(self, info: NodeInfo) -> None:
        """Raises InvalidParams."""
        self._segment = info.segment
        self.base = info.engine_base
        self.layout = Layout.of(info.capacity_bytes, info.page_bytes)
        self.head_bytes = PAGE_TABLE_OFFSET + 4 * self.layout.page_count
        """From `base` on: all that `table_in` looks at."""

    def table_in(self, head: U8) -> U32 | None:
        """The page table in a copy of the head; None where it isn't this segment's."""
        found = Head.read(head[:PAGE_TABLE_OFFSET].data)
        if found is None or found.segment != self._segment or found.layout != self.layout:
            return None
        return page_table(head, self.layout).copy()

    def places(self, slots: U32, lengths: U64, table: U32) -> tuple[U64, NDArray[np.bool_]]:
        """Address of each slot's first byte, and whether an object of that length lies inside it (else: any)."""
        offsets, inside = self.layout.find(slots, lengths, table)
        return offsets.astype(np.uint64) + np.uint64(self.base), inside

    def header_places(self, slots: U32) -> U64:
        """Address of each slot's header. Slots must lie inside."""
        rows = self.layout.header_rows(slots).astype(np.uint64)
        return np.uint64(self.base + self.layout.header_offset) + rows * np.uint64(HEADER_BYTES)

    def same_pages(self, slots: U32, one: U32, other: U32) -> bool:
        """Whether two tables agree on the pages of these slots."""
        pages = np.minimum(slots >> np.uint32(16), np.uint32(self.layout.page_count - 1))
        return bool((one[pages] == other[pages]).all())
