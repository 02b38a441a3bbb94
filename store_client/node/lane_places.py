"""Where the payloads of an exchange lie: in the segment, or in scrap that nobody looks at."""

from __future__ import annotations

import struct

import numpy as np

from moonpool.schemas.header import SLOT_INDEX_BITS
from moonpool.schemas.messages import Granted, Status
from moonpool.schemas.packed import I64, U8, u32s
from moonpool.store_client.node.slots import Slots

SCRAP_BYTES = 1 << 20
FEW = 64
"""Slots: of more of them the places are had quicker in arrays."""


def payloads(memory: memoryview, starts: I64, lengths: I64) -> list[memoryview]:
    """In order, neighbours joined."""
    held = lengths > 0
    starts, ends = starts[held], starts[held] + lengths[held]
    if not len(starts):
        return []
    breaks = np.flatnonzero(starts[1:] != ends[:-1])
    firsts = starts[np.concatenate(([0], breaks + 1))].tolist()
    lasts = ends[np.concatenate((breaks, [len(ends) - 1]))].tolist()
    return [memory[first:last] for first, last in zip(firsts, lasts, strict=True)]


def places(slots: Slots, memory: memoryview, granted: Granted, lengths: list[int]) -> list[memoryview]:
    """Where the payload of a put goes: slots, or scrap for what got none."""
    if len(lengths) <= FEW and not any(granted.statuses):
        return _few_places(slots, memory, granted, lengths)
    numbers, sizes = u32s(granted.slots), np.array(lengths, dtype=np.int64)
    taken: U8 = np.frombuffer(granted.statuses, dtype=np.uint8) == Status.OK
    layout, slot_bytes = slots.layout, slots.allocator.slot_bytes
    if taken.all():
        return payloads(memory, layout.data_offsets(numbers, slot_bytes[numbers >> 16]), sizes)
    pieces: list[memoryview] = []
    for block, ok in enumerate(taken.tolist()):
        if ok:
            here = slice(block, block + 1)
            start = layout.data_offsets(numbers[here], slot_bytes[numbers[here] >> 16])
            pieces += payloads(memory, start, sizes[here])
        else:
            pieces += scrap(lengths[block])
    return pieces


def _few_places(slots: Slots, memory: memoryview, granted: Granted, lengths: list[int]) -> list[memoryview]:
    """The same where all have slots."""
    numbers = struct.unpack(f"<{len(lengths)}I", granted.slots)
    sizes = slots.allocator.slot_bytes
    pieces: list[memoryview] = []
    first = end = 0
    for number, length in zip(numbers, lengths, strict=True):
        start = slots.data_offset(number, int(sizes[number >> SLOT_INDEX_BITS]))
        if start != end:
            pieces.append(memory[first:end])
            first = start
        end = start + length
    pieces.append(memory[first:end])
    return [piece for piece in pieces if piece]


def scrap(size_bytes: int) -> list[memoryview]:
    """Room for bytes that nobody wants: one small buffer, over and over."""
    room = memoryview(bytearray(min(size_bytes, SCRAP_BYTES)))
    return [room[: min(SCRAP_BYTES, size_bytes - done)] for done in range(0, size_bytes, SCRAP_BYTES)]
