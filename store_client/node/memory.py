"""The memory seam under NodeCore: one flat buffer in the layout of a segment file.

segment.py   the real one, a mapped file
HeapMemory   the fake: plain memory of this process, gone with it
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from moonpool.store_client.node.layout import Head, Layout


class Memory(Protocol):
    """Memory of one segment: `head` says which and how large."""

    head: Head
    buffer: Any
    """Writable, `head.layout.file_bytes` long (buffer protocol). Header rows of pages without a slot size are holes."""

    def reserve_headers(self, page: int, slots: int) -> bool:
        """Makes the memory of a page's first `slots` headers real; false where the host has none left."""
        ...


class HeapMemory:
    """Bytes of this process, zeroed, with a whole head. `page_limit`: reserve_headers fails for pages beyond it."""

    def __init__(self, layout: Layout, segment: bytes = b"\x01" * 16) -> None:
        self.head = Head(segment, "no-boot", layout)
        self.buffer = np.zeros(layout.file_bytes, dtype=np.uint8)
        packed = self.head.pack()
        self.buffer[: len(packed)] = np.frombuffer(packed, dtype=np.uint8)
        self.page_limit = layout.page_count

    def reserve_headers(self, page: int, slots: int) -> bool:
        """True below the page limit."""
        return page < self.page_limit
