"""Damage to objects that lie in a segment, done behind the node's back."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import numpy as np

from moonpool.schemas.header import HEADER_DTYPE
from moonpool.schemas.messages import Copy
from moonpool.store_client.node.layout import HEAD_BYTES, Head, page_table
from support.processes import NodeProcess
from support.waiting import wait_until

Damage = Callable[[mmap.mmap, int, int], None]
"""Does it, given the file, the offset of the header and that of the payload."""


def flip_payload(file: mmap.mmap, header: int, payload: int) -> None:
    """One bit of the bytes themselves."""
    file[payload + 1000] ^= 0x10


def shorten(file: mmap.mmap, header: int, payload: int) -> None:
    """The object says that it is shorter than it was."""
    fields = np.frombuffer(file[header : header + HEADER_DTYPE.itemsize], dtype=HEADER_DTYPE).copy()
    fields["length"] -= 64
    file[header : header + HEADER_DTYPE.itemsize] = fields.tobytes()


def change_owner(file: mmap.mmap, header: int, payload: int) -> None:
    """The slot says that it holds another block."""
    at = header + (HEADER_DTYPE.fields or {})["block_hash"][1]
    file[at] ^= 1


def damage(node: NodeProcess, copy: Copy, how: Damage) -> None:
    """Damages one copy, once the node has put a checksum to it."""
    descriptor = os.open(node.segment_file, os.O_RDWR)
    try:
        file = mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)
    head = Head.read(file[:HEAD_BYTES])
    assert head is not None and head.segment == copy.segment
    layout, slots = head.layout, np.array([copy.slot], dtype=np.uint32)
    table = page_table(file[:HEAD_BYTES], layout).copy()
    offsets, inside = layout.find(slots, np.array([copy.length], dtype=np.uint64), table)
    assert inside.all()
    header = layout.header_offset + int(layout.header_rows(slots)[0]) * HEADER_DTYPE.itemsize
    wait_until(lambda: _read(file, header)["checksum"])
    how(file, header, int(offsets[0]))
    file.close()


def _read(file: mmap.mmap, header: int) -> np.void:
    found: np.void = np.frombuffer(file[header : header + HEADER_DTYPE.itemsize], dtype=HEADER_DTYPE)[0]
    return found
