"""Removals that the master asked for: exact locations, and predicates that also hit slots being written."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import SlotState, keyspace_word
from moonpool.schemas.messages import DropList, Status
from moonpool.schemas.packed import U32, U64, count_of, distinct, u32s, u64s
from moonpool.store_client import native
from moonpool.store_client.node.headers import DOOMED, generations_in, states_in, words_of
from moonpool.store_client.node.layout import orders_obeyed
from moonpool.store_client.node.obeyed import Obeyed
from moonpool.store_client.node.puts import Put, Writers
from moonpool.store_client.node.reports import MESSAGE_ROWS
from moonpool.store_client.node.slots import Slots

FORWARDS_MAX = 1 << 16
"""Moves remembered; beyond them the older half is forgotten, and a drop that missed leaves a surplus copy, which
the master drops when the report of its move arrives."""

SWEEP_PAGES = 64
"""Pages that one step of a predicate drop looks through."""


class Drops:
    """Flips headers. COMMITTED slots are freed and reported; WRITING ones are doomed: their commit answers GONE, and
    only their writer's end frees their space (I4)."""

    def __init__(self, slots: Slots, writers: Writers) -> None:
        self._slots = slots
        self._writers = writers
        # Where a move took (slot, generation), in two halves of which the older one is forgotten in turn.
        self._forwards: dict[tuple[int, int], tuple[int, int]] = {}
        self._older_forwards: dict[tuple[int, int], tuple[int, int]] = {}
        self.obeyed = Obeyed(orders_obeyed(slots.memory.buffer))
        self.sweeps = 0
        """Predicate drops under way: meanwhile nothing may move to a page that they have passed. Those that mean only
        what was begun before (see Drop) from the moment that they come: what moves gets a new generation."""

    def leave_doomed(self, put: Put) -> tuple[U32, U64, int]:
        """Of a put that is to be committed: frees what was doomed meanwhile, which is GONE. Returns slots and generations of
        the other blocks, and how many are gone."""
        blocks = put.open_blocks()
        doomed = put.doomed[blocks]
        gone, blocks = blocks[doomed], blocks[~doomed]
        if len(gone):
            self._slots.count_writing(put.slots[gone], -1)
            self._slots.free(put.slots[gone], put.generations[gone])
            put.statuses[gone] = Status.GONE
        return put.slots[blocks], put.generations[blocks], len(gone)

    def exact(self, drops: list[DropList]) -> int:
        """Drops what still is where the master says, or where a move took it. Returns bytes freed.
        Raises InvalidParams, nothing dropped."""
        for drop in drops:
            if 8 * count_of(drop.slots, 4, "drop.slots") != len(drop.generations):
                raise InvalidParams(
                    field="drop.generations", value=f"{len(drop.generations)} bytes", allowed="one a slot"
                )
        return sum(
            self._exact(drop.keyspace, *self._forward(u32s(drop.slots), u64s(drop.generations)))
            for drop in drops
        )

    def _exact(self, keyspace: bytes, slots: U32, generations: U64) -> int:
        valid = self._slots.valid(slots)
        slots, generations = slots[valid], generations[valid]
        headers = self._slots.headers.snapshot(self._slots.rows(slots))
        same = headers["keyspace"] == np.uint64(keyspace_word(keyspace))
        committed = same & (headers["word"] == words_of(SlotState.COMMITTED, generations))
        writing = same & (headers["word"] == words_of(SlotState.WRITING, generations))
        gone = distinct(slots[committed])  # a slot named twice is freed once
        freed_bytes = self._slots.bytes_of(gone)
        self._slots.forget(gone)
        self._doom(slots[writing])
        return freed_bytes

    def sweep(
        self,
        keyspace: bytes,
        hashes: NDArray[np.bytes_] | None,
        first_page: int,
        shard: int = 0,
        before: int = 0,
    ) -> int:
        """Drops whatever of a shard's rows lies in SWEEP_PAGES pages from `first_page` on; None: the whole keyspace.
        `hashes`: as hash_set has them. `before`: see Drop. Returns how many slots it hit."""
        pages = range(first_page, min(first_page + SWEEP_PAGES, self._slots.layout.page_count))
        word = keyspace_word(keyspace)
        if native.HOT:
            names = None if hashes is None else hashes.tobytes()
            slots = native.sweep(self._slots.native_layout, pages, word, shard, before, names)
        else:
            slots = self._meant(pages, word, shard, before, hashes)
        if len(slots):
            writing = states_in(self._slots.headers.words[self._slots.rows(slots)]) == SlotState.WRITING
            self._doom(slots[writing])
            gone = slots[~writing]
            # Each is a part of a report that takes its master a moment only.
            for first in range(0, len(gone), MESSAGE_ROWS):
                self._slots.forget(gone[first : first + MESSAGE_ROWS])
        return len(slots)

    def _meant(
        self, pages: range, word: int, shard: int, before: int, hashes: NDArray[np.bytes_] | None
    ) -> U32:
        """See native.sweep."""
        found = [np.zeros(0, dtype=np.uint32)]
        fields = self._slots.headers.fields
        for page in pages:
            slots = self._slots.page_slots(page)
            if not len(slots):
                continue
            first = page * self._slots.layout.headers_per_page
            headers = fields[first : first + len(slots)]
            wanted = headers["keyspace"] == np.uint64(word)
            wanted &= (states_in(headers["word"]) != SlotState.FREE) & (headers["shard"] == shard)
            if before:
                wanted &= generations_in(headers["word"]) < np.uint64(before)
            if hashes is not None and wanted.any():
                wanted[wanted] = np.isin(headers["block_hash"][wanted], hashes)
            found.append(slots[wanted])
        return np.concatenate(found)

    def _doom(self, slots: U32) -> None:
        if not len(slots):
            return
        rows = self._slots.rows(slots)
        headers = self._slots.headers.snapshot(rows)
        self._slots.headers.fields["flags"][rows] |= DOOMED  # an adopting node knows it from here
        generations = generations_in(headers["word"])
        for session, put_id in set(zip(headers["session"].tolist(), headers["put_id"].tolist(), strict=True)):
            put = self._writers.find_put(session, put_id)
            if put is not None:
                put.doomed |= np.isin(put.generations, generations) & (put.statuses == Status.OK)

    # ------------------------------------------------------------ moves

    def moved(self, slots: U32, generations: U64, new_slots: U32, new_generations: U64) -> None:
        """Remembers a move: the master may name the old place until it has read the report."""
        if len(self._forwards) >= FORWARDS_MAX // 2:
            self._older_forwards, self._forwards = self._forwards, {}
        old = zip(slots.tolist(), generations.tolist(), strict=True)
        self._forwards.update(
            zip(old, zip(new_slots.tolist(), new_generations.tolist(), strict=True), strict=True)
        )

    def follow(self, place: tuple[int, int]) -> tuple[int, int]:
        """Where moves took a (slot, generation); the same place where none did."""
        while (further := self._forwards.get(place) or self._older_forwards.get(place)) is not None:
            place = further
        return place

    def _forward(self, slots: U32, generations: U64) -> tuple[U32, U64]:
        """The same places after all moves."""
        if not self._forwards:
            return slots, generations
        places = [self.follow(place) for place in zip(slots.tolist(), generations.tolist(), strict=True)]
        return (
            np.array([slot for slot, _ in places], dtype=np.uint32),
            np.array([generation for _, generation in places], dtype=np.uint64),
        )


def hash_set(packed: bytes, hash_bytes: int) -> NDArray[np.bytes_]:
    """Packed hashes as the ascending S32 array that headers are compared with. Raises InvalidParams."""
    padded = np.zeros((count_of(packed, hash_bytes, "drop.hashes"), 32), dtype=np.uint8)
    padded[:, :hash_bytes] = np.frombuffer(packed, dtype=np.uint8).reshape(-1, hash_bytes)
    result: NDArray[np.bytes_] = np.sort(padded.view("S32").reshape(-1))
    return result
