"""What a segment holds of one keyspace, by name: hashes, ranks and the key texts of plain objects."""

from __future__ import annotations

import numpy as np

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import SLOT_INDEX_BITS, Headers, SlotState, keyspace_word, slot_number
from moonpool.schemas.messages import KeyList, LaneKeys, ListKeys
from moonpool.schemas.packed import U32, count_of, u32s, u64s
from moonpool.store_client.node.headers import hash_column, states_in, words_of
from moonpool.store_client.node.slots import Slots

SLOTS_MAX = 1024
"""Headers looked at for one answer: with the longest key texts it stays far below a frame."""

KEYS_MAX = 256
"""Key texts of one answer: the longest ones still fit a frame."""

END = -1


def list_keys(slots: Slots, request: ListKeys) -> KeyList:
    """The next piece. A cursor is the slot to begin at. Raises InvalidParams, KeyspaceUnknown."""
    spec = slots.keyspaces.spec(request.keyspace)
    page, index = request.cursor >> SLOT_INDEX_BITS, request.cursor & ((1 << SLOT_INDEX_BITS) - 1)
    if not 0 <= page < slots.layout.page_count:
        raise InvalidParams(field="cursor", value=request.cursor, allowed="0, or the one that was answered")
    here = slots.page_slots(page)[index : index + SLOTS_MAX]
    headers = slots.headers.snapshot(slots.rows(here))
    wanted = (states_in(headers["word"]) == SlotState.COMMITTED) & (
        headers["keyspace"] == np.uint64(keyspace_word(request.keyspace))
    )
    held, headers = here[wanted], headers[wanted]
    return KeyList(
        hash_column(headers, "block_hash", spec.hash_bytes),
        headers["rank"].tobytes(),
        _texts(slots, held, headers),
        _after(slots, page, index + SLOTS_MAX),
    )


def key_texts(slots: Slots, request: LaneKeys) -> list[str]:
    """Of the objects that lie at these places; empty where one doesn't any more, or has none. Raises InvalidParams."""
    count = count_of(request.slots, 4, "keys.slots")
    if count > KEYS_MAX or 8 * count != len(request.generations):
        allowed = f"columns of equal length, {KEYS_MAX} slots at most"
        raise InvalidParams(field="keys.slots", value=f"{count} slots", allowed=allowed)
    numbers, generations = u32s(request.slots), u64s(request.generations)
    valid = slots.valid(numbers)
    found = [""] * len(numbers)
    held = np.flatnonzero(valid)
    headers = slots.headers.snapshot(slots.rows(numbers[held]))
    same = headers["word"] == words_of(SlotState.COMMITTED, generations[held])
    for index, text in zip(
        held[same].tolist(), _texts(slots, numbers[held[same]], headers[same]), strict=True
    ):
        found[index] = text
    return found


def _texts(slots: Slots, held: U32, headers: Headers) -> list[str]:
    """What lies behind the payload of each of these slots."""
    sizes = slots.allocator.slot_bytes[held >> SLOT_INDEX_BITS]
    starts = slots.layout.data_offsets(held, sizes) + headers["length"].astype(np.int64)
    ends = starts + headers["key_bytes"]
    return [
        slots.data[start:end].tobytes().decode(errors="replace")
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _after(slots: Slots, page: int, index: int) -> int:
    """The cursor behind `index` of `page`: pages without slots are passed over."""
    if index < slots.allocator.slots[page]:
        return slot_number(page, index)
    ahead = np.flatnonzero(slots.allocator.slots[page + 1 :])
    return slot_number(page + 1 + int(ahead[0]), 0) if len(ahead) else END
