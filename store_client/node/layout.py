"""Where everything lies in a segment file: pure arithmetic, shared by the node and the clients that map the file.

0              head (1 MiB): fixed fields, page table (u32 slot bytes a page, 0: no slot size yet), epochs, orders obeyed,
               two annexes
header_offset  headers: headers_per_page * 128 bytes a page, sparse until the page gets a slot size
data_offset    pages, all of them allocated before the segment is announced
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import HEADER_BYTES, SLOT_INDEX_BITS
from moonpool.schemas.packed import U32, U64
from moonpool.schemas.runs import SHARDS_MAX

HEAD_BYTES = 1 << 20
HEAD_MAGIC = b"MOONPOOL"
HEAD_VERSION = 2
PAGE_TABLE_OFFSET = 4096
PAGES_MAX = 1 << 16
OBEYED_MAX = 4096
OBEYED_WORDS = 4
_EPOCHS_OFFSET = PAGE_TABLE_OFFSET + 4 * PAGES_MAX
_OBEYED_OFFSET = _EPOCHS_OFFSET + 8 * SHARDS_MAX
ANNEX_OFFSET = _OBEYED_OFFSET + 8 * OBEYED_WORDS * OBEYED_MAX
ANNEX_BYTES = (HEAD_BYTES - ANNEX_OFFSET) // 2
"""Two annexes hold the keyspace specs and the session locks; they are written in turn, so that one is whole."""

PAGE_BYTES_MIN = 64 << 10
PAGE_BYTES_MAX = 64 << 20
PAGES_WANTED = 32
"""A page serves one slot size, so a segment wants this many where pages stay at 1 MiB or more."""

SLOT_ALIGN = 4096
CLASS_BYTES_MIN = 1024
CLASS_STEPS = 8
"""Size classes a doubling: the step above a class is at most 1/8 of it, so under 1/9 of a slot is waste."""

KEY_SHARE = 64
KEY_BYTES = (64, SLOT_ALIGN)
"""One class more, right above each power of two, with room for key texts: this part of it, at least and at most so many bytes.
Objects have such sizes more often than others, and without it their key texts took an eighth of the memory."""

FEW = 8
"""So many are computed one by one: arrays cost more to set up."""

_DATA_ALIGN = 2 << 20  # huge pages
_INDEX_MASK = (1 << SLOT_INDEX_BITS) - 1
_HEAD = struct.Struct("<8sII16s36s4xQQIIQQ")
_CEILING_OFFSET = 256  # changed while the node runs: own cache line, an aligned word


def fixed_slot_bytes(payload_bytes: int) -> int:
    """Slot size of a keyspace whose objects all have `payload_bytes`: rounded up to 4 KiB."""
    return -(-payload_bytes // SLOT_ALIGN) * SLOT_ALIGN


def class_slot_bytes(object_bytes: U64) -> U64:
    """Slot size for each object of its own size (payload and key text): the class at or above it, from 1 KiB up."""
    if len(object_bytes) <= FEW:
        return np.array(list(map(object_slot_bytes, object_bytes.tolist())), dtype=np.uint64)
    sizes = np.maximum(object_bytes, CLASS_BYTES_MIN).astype(np.uint64)
    # float64 is exact here: sizes stay far below 2**53, and frexp of size - 1 keeps powers of two in their class.
    exponents = np.frexp((sizes - np.uint64(1)).astype(np.float64))[1].astype(np.uint64)
    power = np.uint64(1) << (exponents - np.uint64(1))
    step = power // np.uint64(CLASS_STEPS)
    keyed = power + np.clip(power // np.uint64(KEY_SHARE), *KEY_BYTES).astype(np.uint64)
    result: U64 = np.where(sizes <= keyed, keyed, (sizes + step - np.uint64(1)) // step * step)
    return result


def object_slot_bytes(object_bytes: int) -> int:
    """The same of one object."""
    size = max(object_bytes, CLASS_BYTES_MIN)
    power = 1 << ((size - 1).bit_length() - 1)
    keyed = power + min(max(power // KEY_SHARE, KEY_BYTES[0]), KEY_BYTES[1])
    if size <= keyed:
        return keyed
    step = power // CLASS_STEPS
    return -(-size // step) * step


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of one segment. A slot number is page << 16 | index."""

    page_bytes: int
    page_count: int

    @staticmethod
    def of(size_bytes: int, page_bytes: int = 0) -> Layout:
        """The layout of a segment with up to `size_bytes` of data; a `page_bytes` of 0 picks one up to 64 MiB.
        Raises InvalidParams."""
        if not page_bytes:
            page_bytes = PAGE_BYTES_MAX
            while page_bytes > 1 << 20 and size_bytes // page_bytes < PAGES_WANTED:
                page_bytes //= 2
        if page_bytes % SLOT_ALIGN or not PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX:
            raise InvalidParams(
                field="page_size", value=page_bytes, allowed="multiples of 4 KiB from 64 KiB to 64 MiB"
            )
        page_count = size_bytes // page_bytes
        if not 1 <= page_count <= PAGES_MAX:
            raise InvalidParams(
                field="size", value=size_bytes, allowed=f"1 to {PAGES_MAX} pages of {page_bytes} bytes"
            )
        return Layout(page_bytes, page_count)

    @property
    def headers_per_page(self) -> int:
        """Slots that a page can have at most."""
        return min(self.page_bytes // CLASS_BYTES_MIN, 1 << SLOT_INDEX_BITS)

    @property
    def header_offset(self) -> int:
        """Where the header region begins in the file."""
        return HEAD_BYTES

    @property
    def data_offset(self) -> int:
        """Where page 0 begins in the file."""
        end = HEAD_BYTES + self.page_count * self.headers_per_page * HEADER_BYTES
        return -(-end // _DATA_ALIGN) * _DATA_ALIGN

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all pages."""
        return self.page_count * self.page_bytes

    @property
    def file_bytes(self) -> int:
        """Size of the segment file."""
        return -(-(self.data_offset + self.capacity_bytes) // _DATA_ALIGN) * _DATA_ALIGN

    def slots_per_page(self, slot_bytes: int) -> int:
        """How many slots of that size a page has."""
        return min(self.page_bytes // slot_bytes, self.headers_per_page)

    def native(self, address: int) -> U64:
        """The segment as it is mapped at `address`, for loops in C (hot_slots.h)."""
        places = (self.data_offset, self.header_offset, PAGE_TABLE_OFFSET)
        sizes = (self.page_bytes, self.page_count, self.headers_per_page)
        return np.array([*(address + place for place in places), *sizes], dtype=np.uint64)

    def header_rows(self, slots: U32) -> NDArray[np.intp]:
        """Row of each slot's header in the header region, as a table of 128-byte rows."""
        pages = (slots >> SLOT_INDEX_BITS).astype(np.intp)
        return pages * self.headers_per_page + (slots & np.uint32(_INDEX_MASK)).astype(np.intp)

    def data_offsets(self, slots: U32, slot_bytes: U32 | int) -> NDArray[np.int64]:
        """File offset of each slot's payload, given its slot size."""
        pages = (slots >> SLOT_INDEX_BITS).astype(np.int64)
        index = (slots & np.uint32(_INDEX_MASK)).astype(np.int64)
        return self.data_offset + pages * self.page_bytes + index * np.asarray(slot_bytes, dtype=np.int64)

    def find(self, slots: U32, lengths: U64, page_table: U32) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """File offset of each slot, and whether slot and length lie inside their page as it is cut now.

        For slot numbers that come from elsewhere and may be stale or wrong; the offset of a bad one is 0.
        """
        pages = slots >> SLOT_INDEX_BITS
        known = pages < self.page_count
        sizes = page_table[np.where(known, pages, 0)]
        index = (slots & np.uint32(_INDEX_MASK)).astype(np.uint64)
        per_page = np.where(sizes > 0, self.page_bytes // np.maximum(sizes, 1), 0)
        inside = known & (index < per_page) & (index < self.headers_per_page) & (lengths <= sizes)
        return np.where(inside, self.data_offsets(slots, sizes), 0), inside


@dataclass(frozen=True, slots=True)
class Head:
    """The fixed fields of a segment's head."""

    segment: bytes  # 16 random bytes
    boot_id: str
    layout: Layout

    def pack(self) -> bytes:
        """The bytes at offset 0, magic first. Whoever creates a segment stores the magic last."""
        layout = self.layout
        return _HEAD.pack(
            HEAD_MAGIC,
            HEAD_VERSION,
            HEAD_BYTES,
            self.segment,
            self.boot_id.encode(),
            layout.page_bytes,
            layout.capacity_bytes,
            layout.page_count,
            layout.headers_per_page,
            layout.header_offset,
            layout.data_offset,
        )

    @staticmethod
    def read(buffer: Any) -> Head | None:
        """From a segment's first bytes (any buffer); None where they aren't a whole head of this version."""
        if len(memoryview(buffer)) < _HEAD.size:
            return None
        magic, version, head_bytes, segment, boot_id, page_bytes, _, pages, *_ = _HEAD.unpack_from(buffer)
        if (magic, version, head_bytes) != (HEAD_MAGIC, HEAD_VERSION, HEAD_BYTES):
            return None
        try:
            head = Head(segment, boot_id.rstrip(b"\0").decode(), Layout.of(page_bytes * pages, page_bytes))
        except (InvalidParams, UnicodeDecodeError):
            return None
        return head if head.pack() == bytes(memoryview(buffer)[: _HEAD.size]) else None


def page_table(buffer: Any, layout: Layout) -> U32:
    """View of the page table in a mapped segment (or its head): slot bytes of each page, 0 where it has none."""
    return np.frombuffer(buffer, dtype="<u4", count=layout.page_count, offset=PAGE_TABLE_OFFSET)


def generation_ceiling(buffer: Any) -> U64:
    """View of one word: no generation at or above it has ever been used."""
    return np.frombuffer(buffer, dtype="<u8", count=1, offset=_CEILING_OFFSET)


def epochs_seen(buffer: Any) -> U64:
    """View of one word a shard: the newest epoch of its owners that the segment's node has obeyed."""
    return np.frombuffer(buffer, dtype="<u8", count=SHARDS_MAX, offset=_EPOCHS_OFFSET)


def orders_obeyed(buffer: Any) -> U64:
    """View of a table of OBEYED_MAX rows: the removals that the segment's node has obeyed, see node/obeyed.py."""
    words = np.frombuffer(buffer, dtype="<u8", count=OBEYED_WORDS * OBEYED_MAX, offset=_OBEYED_OFFSET)
    return words.reshape(OBEYED_MAX, OBEYED_WORDS)
