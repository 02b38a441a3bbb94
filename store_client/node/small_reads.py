"""Small objects for readers of other hosts: bytes, and the headers that prove them, in one answer of the event loop."""

from __future__ import annotations

import struct

from moonpool.schemas.access import Identity
from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import HEADER_BYTES, SLOT_INDEX_BITS, SlotState, word_of
from moonpool.schemas.messages import SMALL_BYTES, SMALL_OBJECTS, GetSmall, SmallData, Status
from moonpool.schemas.packed import count_of, u32s, u64s
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.headers import fence
from moonpool.store_client.node.slots import INDEX_MASK, Slots

_PROOF = struct.Struct("<QQ8xQ")
"""Word, keyspace and length at the beginning of a header."""


def get_small(core: NodeCore, request: GetSmall, identity: Identity) -> SmallData:
    """MISSING: not there, not any more, or another tenant's. One by one: for so few objects arrays cost more to set up.
    Raises InvalidParams."""
    wanted = _columns(request)
    statuses, payloads, headers = bytearray(), [], []
    with core.lock:
        for slot, generation, length in wanted:
            found = _read(core.slots, slot, length)
            if found is None:
                statuses.append(Status.MISSING)
                continue
            payload, header = found
            word, keyspace, held = _PROOF.unpack_from(header)
            right = word == word_of(SlotState.COMMITTED, generation) and held == length
            if not right or not core.keyspaces.shows(keyspace, identity):
                statuses.append(Status.MISSING)
                continue
            statuses.append(Status.OK)
            payloads.append(payload)
            headers.append(header)
            core.counters["small_bytes_read"] += length
    return SmallData(bytes(statuses), b"".join(payloads), b"".join(headers))


def _read(slots: Slots, slot: int, length: int) -> tuple[bytes, bytes] | None:
    """Payload, then header (I3); None where slot and length don't lie inside their page as it is cut now."""
    layout, memory = slots.layout, slots.data.data
    page = slot >> SLOT_INDEX_BITS
    if page >= layout.page_count:
        return None
    slot_bytes = int(slots.allocator.slot_bytes[page])
    if not slot_bytes or slot & INDEX_MASK >= layout.slots_per_page(slot_bytes) or length > slot_bytes:
        return None
    at = slots.data_offset(slot, slot_bytes)
    payload = bytes(memory[at : at + length])
    fence()
    at = slots.header_offset(slot)
    return payload, bytes(memory[at : at + HEADER_BYTES])


def _columns(request: GetSmall) -> list[tuple[int, int, int]]:
    """(slot, generation, length) of each object. Raises InvalidParams."""
    count = count_of(request.slots, 4, "get.slots")
    if count > SMALL_OBJECTS or not 8 * count == len(request.generations) == len(request.lengths):
        allowed = f"columns of equal length, {SMALL_OBJECTS} slots at most"
        raise InvalidParams(field="get.slots", value=f"{count} slots", allowed=allowed)
    lengths: list[int] = u64s(request.lengths).tolist()
    if sum(lengths) > SMALL_BYTES:
        raise InvalidParams(
            field="get.lengths", value=f"{sum(lengths)} bytes", allowed=f"{SMALL_BYTES} bytes at most"
        )
    return list(zip(u32s(request.slots).tolist(), u64s(request.generations).tolist(), lengths, strict=True))
