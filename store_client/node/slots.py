"""Slots, their headers, their memory and their generations: the state that the parts of NodeCore share."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.header import HEADER_BYTES, SLOT_INDEX_BITS, Headers, SlotState, slot_number
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Entries, Freed, Op, View
from moonpool.schemas.packed import I64, U8, U32, U64
from moonpool.store_client.node.allocator import Allocator
from moonpool.store_client.node.headers import (
    COPIED,
    HeaderTable,
    Rows,
    generations_in,
    hash_column,
    states_in,
    words_of,
)
from moonpool.store_client.node.keyspaces import Keyspaces
from moonpool.store_client.node.layout import generation_ceiling, page_table
from moonpool.store_client.node.memory import Memory
from moonpool.store_client.node.puts import Put
from moonpool.store_client.raw_memory import address_of

log = logging.getLogger(__name__)

INDEX_MASK = (1 << SLOT_INDEX_BITS) - 1
FEW = 64
"""Slots that are counted one by one: numpy takes longer to begin."""

GENERATION_STRIDE = 1 << 20
"""The ceiling in the head is raised by this much, before the first of them is used."""


class Sink(Protocol):
    """Where a core tells what it did, at the moment a header changed."""

    def naming(self, shard: int) -> bool:
        """Whether an inventory of the shard is under way: its master may not know of slots that it hasn't come to."""
        ...

    def opening(self) -> bool:
        """Whether some shard's master hasn't taken the first message of its stream, which it answers with removals of
        what had been begun by then: nothing may get a new generation."""
        ...

    def emit(self, op: Op, shard: int) -> int:
        """Takes an op for the report stream of a shard; returns a serial to wait for."""
        ...

    def checksum(self, payload: View) -> int:
        """What the header of an object is to say of its bytes; 0 where no checksums are kept."""
        ...

    def written(self, slots: U32, generations: U64) -> None:
        """These were committed, and have no checksum yet."""
        ...


class Slots:
    """Everything about slots except who may write them."""

    def __init__(self, memory: Memory, keyspaces: Keyspaces, sink: Sink) -> None:
        layout = self.layout = memory.head.layout
        self.memory = memory
        self.keyspaces = keyspaces
        self.sink = sink
        self.headers = HeaderTable(memory.buffer, layout)
        self.data: U8 = np.frombuffer(memory.buffer, dtype=np.uint8)
        self.allocator = Allocator(layout, page_table(memory.buffer, layout), memory.reserve_headers)
        self.writing: I64 = np.zeros(layout.page_count, dtype=np.int64)
        self.committed = 0
        # Each is computed anew by the layout, and asked for with every object.
        self._data_offset = layout.data_offset
        self._header_offset = layout.header_offset
        self._headers_per_page = layout.headers_per_page
        self.native_layout = layout.native(address_of(self.data))
        self._page_bytes = layout.page_bytes
        self._ceiling = generation_ceiling(memory.buffer)
        # All below the ceiling may have been used by an earlier life of this segment. 0 means "not there".
        self.next_generation = max(int(self._ceiling[0]), 1)

    def new_generations(self, count: int) -> U64:
        """Generations that were never used in this segment, ascending."""
        first = self.new_generation(count)
        return np.arange(first, first + count, dtype=np.uint64)

    def new_generation(self, count: int = 1) -> int:
        """One that was never used in this segment: the first of so many."""
        generation = self.next_generation
        self.next_generation += count
        if self.next_generation > self._ceiling[0]:
            self._ceiling[0] = self.next_generation + GENERATION_STRIDE
        return generation

    def return_generations(self, first: int) -> None:
        """The reverse, in the same step, of those from there on: no header has got one."""
        self.next_generation = first

    def row(self, slot: int) -> int:
        """Header row of a slot."""
        return (slot >> SLOT_INDEX_BITS) * self._headers_per_page + (slot & INDEX_MASK)

    def header_offset(self, slot: int) -> int:
        """Where its header lies in the segment."""
        return self._header_offset + self.row(slot) * HEADER_BYTES

    def data_offset(self, slot: int, slot_bytes: int) -> int:
        """Where its payload lies in the segment."""
        page = self._data_offset + (slot >> SLOT_INDEX_BITS) * self._page_bytes
        return page + (slot & INDEX_MASK) * slot_bytes

    def rows(self, slots: U32) -> Rows:
        """Header rows of slots."""
        return self.layout.header_rows(slots)

    def valid(self, slots: U32) -> NDArray[np.bool_]:
        """Which slot numbers exist as pages are cut now."""
        return self.layout.find(slots, np.zeros(len(slots), dtype=np.uint64), self.allocator.slot_bytes)[1]

    def page_slots(self, page: int) -> U32:
        """All slots of a page."""
        first = slot_number(page, 0)
        return np.arange(first, first + int(self.allocator.slots[page]), dtype=np.uint32)

    def count_writing(self, slots: U32, step: int) -> None:
        """Keeps how many WRITING slots each page has: those can't move."""
        if len(slots) <= FEW:
            pages = (slots >> SLOT_INDEX_BITS).tolist()
            for page in set(pages):
                self.writing[page] += step * pages.count(page)
        else:
            np.add.at(self.writing, slots >> SLOT_INDEX_BITS, step)

    def free(self, slots: U32, generations: U64) -> None:
        """Turns headers to FREE, then gives the slots back."""
        self.headers.turn(self.rows(slots), words_of(SlotState.FREE, generations))
        self.allocator.give(slots)

    def forget(self, slots: U32) -> None:
        """Frees COMMITTED slots and reports it."""
        if len(slots):
            headers = self.headers.snapshot(self.rows(slots))
            self.free(slots, generations_in(headers["word"]))
            self.committed -= len(slots)
            for shard, op in freed(headers, slots, self.keyspaces):
                self.sink.emit(op, shard)

    def discard_misfits(self, slots: U32) -> U32:
        """Frees COMMITTED slots whose headers nobody can have meant; returns the others. Not reported: their ranks
        mean nothing, and an inventory that doesn't name a row ends it."""
        headers = self.headers.snapshot(self.rows(slots))
        good = np.zeros(len(slots), dtype=np.bool_)
        for part in by_keyspace(headers, self.keyspaces):
            good[part.at] = True
        if not good.all():
            bad = slots[~good]
            log.warning("%d slots have headers that don't fit their keyspaces; they are freed", len(bad))
            self.free(bad, generations_in(headers["word"][~good]))
            self.committed -= len(bad)
        return slots[good]

    def bytes_of(self, slots: U32) -> int:
        """Bytes that slots take."""
        return int(self.allocator.slot_bytes[slots >> SLOT_INDEX_BITS].sum(dtype=np.int64))

    def validate(self, puts: Iterable[Put]) -> None:
        """Raises AssertionError where headers, allocator and open puts contradict each other."""
        self.allocator.validate()
        writing: dict[int, int] = {}
        committed = 0
        for page in range(self.layout.page_count):
            numbers = self.page_slots(page)
            words = self.headers.words[self.rows(numbers)]
            states = states_in(words)
            assert (states <= SlotState.COMMITTED).all()
            assert int((states == SlotState.FREE).sum()) == self.allocator.free[page], page
            assert int((states == SlotState.WRITING).sum()) == self.writing[page], page
            committed += int((states == SlotState.COMMITTED).sum())
            held = states == SlotState.WRITING
            writing.update(zip(numbers[held].tolist(), generations_in(words[held]).tolist(), strict=True))
        assert committed == self.committed
        for put in puts:
            blocks = put.open_blocks()
            for slot, generation in zip(
                put.slots[blocks].tolist(), put.generations[blocks].tolist(), strict=True
            ):
                assert writing.pop(slot, None) == generation, (slot, generation)
        assert not writing, "WRITING slots that no put owns"


def fits(headers: Headers, spec: KeyspaceSpec) -> NDArray[np.bool_]:
    """Which headers can be of this keyspace. Clients map the segment writable: a stray write may leave anything."""
    inside: NDArray[np.bool_] = (headers["rank"] < spec.world) & (headers["hash_bytes"] == spec.hash_bytes)
    if not spec.variable_size:
        sizes = np.array(spec.shard_bytes, dtype=np.uint64)
        inside &= headers["length"] == sizes[np.where(inside, headers["rank"], 0)]
    return inside


class Group(NamedTuple):
    """Some of an array of headers: all of one keyspace and shard."""

    shard: int
    digest: bytes
    hash_bytes: int
    at: NDArray[np.intp]


def by_keyspace(headers: Headers, keyspaces: Keyspaces) -> Iterator[Group]:
    """Each keyspace and shard among `headers`. Left out are unknown keyspaces, and what doesn't fit its own: the
    master would refuse the whole report."""
    words = headers["keyspace"]
    alike = len(words) > 0 and bool((words == words[0]).all())  # the usual case, without sorting
    for word in words[:1].tolist() if alike else np.unique(words).tolist():
        digest = keyspaces.digest_of(word)
        if digest is not None:
            spec = keyspaces.spec(digest)
            index = np.arange(len(words)) if alike else np.flatnonzero(words == word)
            index = index[fits(headers if alike else headers[index], spec)]
            for shard, part in _by_shard(headers["shard"][index]):
                yield Group(shard, digest, spec.hash_bytes, index[part])


def _by_shard(shards: U32) -> Iterator[tuple[int, NDArray[np.intp] | slice]]:
    if not len(shards):
        return
    if (shards == shards[0]).all():  # always so where the cluster has one
        yield int(shards[0]), slice(None)
        return
    for shard in np.unique(shards).tolist():
        yield shard, np.flatnonzero(shards == shard)


def entries(headers: Headers, slots: U32, keyspaces: Keyspaces) -> list[tuple[int, Entries]]:
    """What these committed slots hold, as columns for reports: (shard, op). Copies that were ordered come apart."""
    copied = headers["flags"] & COPIED != 0
    if copied.any() and not copied.all():
        return [op for part in (~copied, copied) for op in entries(headers[part], slots[part], keyspaces)]
    return [
        (
            group.shard,
            Entries(
                group.digest,
                part["rank"].tobytes(),
                part["position"].tobytes(),
                hash_column(part, "block_hash", group.hash_bytes),
                hash_column(part, "parent_hash", group.hash_bytes),
                slots[group.at].tobytes(),
                generations_in(part["word"]).tobytes(),
                part["length"].tobytes(),
                bool(copied.any()),
            ),
        )
        for group in by_keyspace(headers, keyspaces)
        for part in (headers[group.at],)
    ]


def freed(headers: Headers, slots: U32, keyspaces: Keyspaces) -> list[tuple[int, Freed]]:
    """The same for slots that were freed."""
    return [
        (
            group.shard,
            Freed(
                group.digest,
                part["rank"].tobytes(),
                hash_column(part, "block_hash", group.hash_bytes),
                slots[group.at].tobytes(),
                generations_in(part["word"]).tobytes(),
            ),
        )
        for group in by_keyspace(headers, keyspaces)
        for part in (headers[group.at],)
    ]
