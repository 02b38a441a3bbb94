"""Taking over what an earlier node process left in a segment: headers decide."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from moonpool.schemas.header import Headers, SlotState
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U32
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.headers import DOOMED, generations_in, states_in, words_of
from moonpool.store_client.node.puts import Put


def adopt(core: NodeCore, watch: Callable[[SessionRecord, bool], bool]) -> None:
    """COMMITTED slots live on. WRITING ones of a known session stay open grants; all others are freed.

    `watch(session, whether it has open grants)` takes over each session. Where it says False the session ends here,
    and its grants with it. An open put has its granted blocks only, in their order: a block that got no slot left no
    trace.
    """
    sessions = core.restore()
    writing: list[tuple[Headers, U32]] = []
    for page in np.flatnonzero(core.slots.allocator.slot_bytes).tolist():
        held = _adopt_page(core, page)
        if held is not None:
            writing.append(held)
    if writing:
        headers = np.concatenate([part for part, _ in writing])
        _adopt_puts(core, headers, np.concatenate([slots for _, slots in writing]))
    for record in sessions:
        if not watch(record, bool(core.writers.get(record.session).puts)):
            core.end_session(record.session)


def _adopt_page(core: NodeCore, page: int) -> tuple[Headers, U32] | None:
    """Frees what can't stay; returns the headers and slots that stay WRITING."""
    slots = core.slots
    count = slots.layout.slots_per_page(int(slots.allocator.slot_bytes[page]))
    if not count or not slots.memory.reserve_headers(page, count):
        slots.allocator.lose_page(page)
        return None
    numbers = np.arange(page << 16, (page << 16) + count, dtype=np.uint32)
    rows = slots.rows(numbers)
    headers = slots.headers.snapshot(rows)
    states, generations = states_in(headers["word"]), generations_in(headers["word"])
    known = np.isin(headers["keyspace"], core.keyspaces.words) & (generations < core.slots.next_generation)
    writing = known & (states == SlotState.WRITING) & np.isin(headers["session"], core.writers.sessions[1:])
    committed = known & (states == SlotState.COMMITTED)
    dead = ~(writing | committed | (states == SlotState.FREE))
    slots.headers.turn(rows[dead], words_of(SlotState.FREE, generations[dead]))
    slots.allocator.adopt_page(page, writing | committed)
    slots.committed += int(committed.sum())
    slots.writing[page] = int(writing.sum())
    unchecked = committed & (headers["checksum"] == 0)
    if unchecked.any():
        slots.sink.written(numbers[unchecked], generations[unchecked])
    return (headers[writing], numbers[writing]) if writing.any() else None


def _adopt_puts(core: NodeCore, headers: Headers, slots: U32) -> None:
    order = np.lexsort((generations_in(headers["word"]), headers["put_id"], headers["session"]))
    headers, slots = headers[order], slots[order]
    change = np.flatnonzero(
        (np.diff(headers["session"].view(np.int64)) != 0) | (np.diff(headers["put_id"].view(np.int64)) != 0)
    )
    bounds = [0, *(change + 1).tolist(), len(headers)]
    for start, stop in pairwise(bounds):
        part = headers[start:stop]
        session, put_id = int(part["session"][0]), int(part["put_id"][0])
        core.writers.get(session).open(
            Put(
                session,
                put_id,
                np.full(len(part), Status.OK, dtype=np.uint8),
                slots[start:stop].copy(),
                generations_in(part["word"]),
                (part["flags"] & DOOMED) != 0,
            )
        )
