"""Headers of slots that one put has, and the key texts behind their payloads: in C where there is a compiler, else here."""

from __future__ import annotations

import numpy as np

from moonpool.schemas.header import HEADER_DTYPE
from moonpool.schemas.packed import U32, u64s
from moonpool.store_client import native
from moonpool.store_client.node.headers import fill_hashes
from moonpool.store_client.node.layout import object_slot_bytes
from moonpool.store_client.node.slots import Slots


def name_slots(
    slots: Slots,
    numbers: U32 | bytes,
    header: bytes,
    generation: int,
    slot_bytes: int,
    lengths: bytes,
    hashes: bytes = b"",
    parent: bytes = b"",
    keys: list[bytes] | None = None,
    *,
    by_class: bool = False,
) -> int:
    """See native.name_slots. `numbers` are slots of that size that the node holds."""
    if native.HOT:
        names = (lengths, hashes, parent, keys or None)
        return native.name_slots(
            slots.native_layout, numbers, header, generation, slot_bytes, *names, by_class=by_class
        )
    count = len(lengths) // 8
    numbers = np.frombuffer(numbers, dtype=np.uint32)[:count]
    texts = keys or [b""] * count
    sizes = list(map(int.__add__, u64s(lengths).tolist(), map(len, texts)))
    if max(sizes) > slot_bytes or (by_class and set(map(object_slot_bytes, sizes)) != {slot_bytes}):
        return -1
    headers = np.frombuffer(header * count, dtype=HEADER_DTYPE).copy()
    headers["word"] += np.arange(generation, generation + count, dtype=np.uint64)
    headers["length"] = u64s(lengths)
    headers["key_bytes"] = list(map(len, texts))
    hash_bytes = len(hashes) // count
    if hashes:
        fill_hashes(headers, "block_hash", hashes, hash_bytes)
    if parent:  # of a chain: each the parent of the next one
        headers["position"] += np.arange(count, dtype=np.uint32)
        fill_hashes(headers, "parent_hash", parent + hashes[:-hash_bytes], hash_bytes)
    memory = slots.data.data
    ends = slots.layout.data_offsets(numbers, slot_bytes) + headers["length"].astype(np.int64)
    for end, text in zip(ends.tolist(), texts, strict=True):
        memory[end : end + len(text)] = text
    slots.headers.place(slots.rows(numbers), headers)
    return int(headers["length"].sum())
