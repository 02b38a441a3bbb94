"""Slots that are granted ahead of need, and puts that use them: one exchange with the writer instead of two (I4).

Such a grant is an open put like any other, whose slots have no names yet. It ends as they do: with its writer's commit
(PutAhead), its revoke, a heartbeat that doesn't list it, or its writer's death, never by a timer: a writer that was stopped
may wake up and copy. Its slots are doomed from the start, so a plain Commit only frees them; and a node that adopts the
segment finds a put that can't be committed, whose writer begins anew.

A put gets its generations when it is named, as if it had been begun then: removals from before it don't mean it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import SLOT_INDEX_BITS, SlotState, keyspace_word, word_of
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import AHEAD_BYTES, AHEAD_SLOTS, BeginItem, Entries, Granted
from moonpool.schemas.packed import U32, U64
from moonpool.store_client.node.headers import DOOMED
from moonpool.store_client.node.items import check_item, check_lengths
from moonpool.store_client.node.layout import fixed_slot_bytes
from moonpool.store_client.node.naming import name_slots
from moonpool.store_client.node.puts import PUTS_MAX, Put, Writer, Writers
from moonpool.store_client.node.slots import Slots

SHARE = 16
"""Part of the segment that the grants of all sessions may take together."""

PAGES_LEFT = 8
"""No page is cut for such a grant where fewer than this part of all pages are left."""

_DOOMED = np.ones(AHEAD_SLOTS, dtype=np.bool_)
_WRITING = word_of(SlotState.WRITING, 0)

_HEADER = struct.Struct("<QQHHIQQQ32s32sIHHQ")
"""HEADER_DTYPE."""


class Like(NamedTuple):
    """What is to be granted: as many slots of that size as a put had, and the first word of its keyspace."""

    blocks: int
    slot_bytes: int
    keyspace: int


class Named(NamedTuple):
    """What a put that used such a grant has committed."""

    entries: Entries
    generations: U64
    size_bytes: int


def like(slots: Slots, put: Put, count_max: int = AHEAD_SLOTS) -> Like | None:
    """Of an open put; None where it has no slots, too many, or slots of several sizes or larger than its objects want."""
    if put.ahead_bytes:
        keyspace = slots.headers.fields["keyspace"][slots.row(int(put.slots[0]))]
        return Like(min(len(put.slots), count_max), put.ahead_bytes, int(keyspace))
    held = put.slots[put.open_blocks()]
    if put.larger or not 0 < len(held) <= AHEAD_SLOTS:
        return None
    sizes = set(slots.allocator.slot_bytes[held >> SLOT_INDEX_BITS].tolist())
    if len(sizes) > 1:
        return None
    return Like(len(held), sizes.pop(), int(slots.headers.fields["keyspace"][slots.row(int(held[0]))]))


def grant_ahead(
    slots: Slots, writers: Writers, session: int, put_id: int, wanted: Like, free_bytes_min: int
) -> Granted | None:
    """Slots to be named later; None where the session has enough, or the node none to spare. Idempotent."""
    if session not in writers:
        return None
    writer = writers.get(session)
    known = writer.answer(put_id)
    if known is not None:
        return known
    allocator, count = slots.allocator, wanted.blocks
    if not _may(slots, writers, writer, wanted, free_bytes_min):
        return None
    new_pages = allocator.pool_pages * PAGES_LEFT > slots.layout.page_count
    taken = allocator.take(wanted.slot_bytes, count, new_pages=new_pages)
    if len(taken) < count:
        allocator.give(taken)
        return None
    generations = slots.new_generations(count)
    header = _HEADER.pack(_WRITING, wanted.keyspace, 0, 0, 0, 0, 0, session, b"", b"", 0, 0, DOOMED, put_id)
    name_slots(slots, taken, header, int(generations[0]), wanted.slot_bytes, bytes(8 * count))
    slots.count_writing(taken, 1)
    doomed = _DOOMED[:count].copy()
    put = Put(session, put_id, np.zeros(count, dtype=np.uint8), taken, generations, doomed, wanted.slot_bytes)
    writer.open(put)
    return put.granted()


def _may(slots: Slots, writers: Writers, writer: Writer, wanted: Like, free_bytes_min: int) -> bool:
    if wanted.blocks > AHEAD_SLOTS - writer.ahead_slots or len(writer.puts) >= PUTS_MAX:
        return False
    size_bytes = wanted.blocks * wanted.slot_bytes
    all_bytes = slots.layout.capacity_bytes // SHARE
    share_bytes = min(AHEAD_BYTES, all_bytes // (len(writers) - 1))
    # Those who came early, and were stopped since, may hold more than is their share by now.
    if size_bytes > min(share_bytes - writer.ahead_bytes, all_bytes - writers.ahead_bytes):
        return False
    return slots.allocator.free_bytes - size_bytes >= free_bytes_min


def name(slots: Slots, put: Put, item: BeginItem, spec: KeyspaceSpec, shards: int) -> Named:
    """Names what lies in the first slots of such a put and turns them to COMMITTED, with generations of their own. Frees
    the others; the put is to be closed then. Raises InvalidParams, and leaves it as it was."""
    count, keys = check_item(item, spec, shards)
    if count > len(put.slots):
        raise InvalidParams(field="item", value=f"{count} blocks", allowed=f"{len(put.slots)} at most")
    lengths = item.lengths
    by_class = spec.variable_size
    if not by_class:
        same = spec.shard_bytes[item.rank].to_bytes(8, "little") * count
        if fixed_slot_bytes(spec.shard_bytes[item.rank]) != put.ahead_bytes or lengths not in (b"", same):
            raise _other_size(put)
        lengths = same
    else:
        check_lengths(item, count)
    generation = slots.new_generation(count)
    taken = put.slots[:count]
    parent = (item.parent or bytes(spec.hash_bytes)) if spec.kind is Kind.CHAINED else b""
    size_bytes = name_slots(
        slots,
        taken,
        header_of(item, spec, SlotState.COMMITTED, put.session, put.put_id),
        generation,
        put.ahead_bytes,
        lengths,
        item.hashes,
        parent,
        keys,
        by_class=by_class,
    )
    if size_bytes < 0:
        raise _other_size(put)
    slots.committed += count
    slots.count_writing(put.slots, -1)
    if count < len(put.slots):
        slots.free(put.slots[count:], put.generations[count:])
    generations = np.arange(generation, generation + count, dtype=np.uint64)
    return Named(entries_of(item, parent, taken, generations, lengths), generations, size_bytes)


def entries_of(item: BeginItem, parent: bytes, slots: U32, generations: U64, lengths: bytes) -> Entries:
    """What all of an item's blocks are reported as. `parent`: of the first one, where they are a chain."""
    count = len(slots)
    positions = item.position.to_bytes(4, "little") * count
    if parent:
        positions = np.arange(item.position, item.position + count, dtype=np.uint32).tobytes()
    return Entries(
        item.keyspace,
        item.rank.to_bytes(2, "little") * count,
        positions,
        item.hashes,
        parent + item.hashes[: -len(parent)] if parent else bytes(len(item.hashes)),
        slots.tobytes(),
        generations.tobytes(),
        lengths,
    )


def header_of(
    item: BeginItem, spec: KeyspaceSpec, state: SlotState, session: int, put_id: int, checksum: int = 0
) -> bytes:
    """What the headers of all blocks have in common; of one block its checksum too."""
    return _HEADER.pack(
        word_of(state, 0),
        keyspace_word(item.keyspace),
        item.rank,
        spec.hash_bytes,
        item.position,
        0,
        checksum,
        session,
        b"",
        b"",
        item.shard,
        0,
        0,
        put_id,
    )


def _other_size(put: Put) -> InvalidParams:
    return InvalidParams(
        field="item.lengths", value="other sizes", allowed=f"what takes slots of {put.ahead_bytes} bytes"
    )
