"""Checksums, computed off the writer's path by a thread of the node. A header without one has 0 there."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from moonpool.schemas.header import SLOT_INDEX_BITS, Headers, SlotState, keyspace_word
from moonpool.schemas.messages import Check
from moonpool.schemas.packed import U32, U64
from moonpool.store_client.checksums import sums
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.headers import hash_column, words_of
from moonpool.store_client.raw_memory import address_of

QUEUED_MAX = 1 << 18
"""Slots waiting; what comes beyond keeps no checksum, and its readers rely on the header's identity."""

BATCH = 64

PAUSE_S = 0.005
"""After a commit: its writer waits for the report, which takes the same cores and locks."""


class Checksums:
    """A queue of committed slots and the thread that works it off."""

    def __init__(self) -> None:
        self._queue: deque[tuple[U32, U64]] = deque()
        self._queued = 0
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self.computed = 0
        self.computed_at_once = 0
        """Of objects that were so small that their put did it."""
        self.skipped = 0

    def start(self, core: NodeCore) -> None:
        """Begins to work."""
        self._thread = threading.Thread(target=self._run, args=(core,), name="checksums", daemon=True)
        self._thread.start()

    def push(self, slots: U32, generations: U64) -> None:
        """Queues slots. Called under the node's lock, which is never taken under this queue's own."""
        with self._wake:
            if self._queued + len(slots) > QUEUED_MAX:
                self.skipped += len(slots)
                return
            self._queue.append((slots, generations))
            self._queued += len(slots)
            if len(self._queue) == 1:  # else it is at work, or rests
                self._wake.notify()

    @property
    def all_computed(self) -> int:
        """By the thread, and at once."""
        return self.computed + self.computed_at_once

    @property
    def queued(self) -> int:
        """Slots that wait."""
        return self._queued

    def close(self) -> None:
        """Ends the thread; what is queued stays without."""
        with self._wake:
            self._ending.set()
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self, core: NodeCore) -> None:
        while self._await_work():
            with self._wake:
                slots, generations = self._queue.popleft()
                self._queued -= len(slots)
            for first in range(0, len(slots), BATCH):
                if self._ending.is_set():
                    return
                batch = slice(first, first + BATCH)
                self.computed += compute(core, slots[batch], generations[batch])

    def _await_work(self) -> bool:
        """False where the node ends."""
        with self._wake:
            if self._queue or self._ending.is_set():
                return not self._ending.is_set()
            while not self._queue and not self._ending.is_set():
                self._wake.wait()
        return not self._ending.wait(PAUSE_S)


def compute(core: NodeCore, slots: U32, generations: U64) -> int:
    """Writes the checksums of those slots that hold the same object before and after; returns how many."""
    words = words_of(SlotState.COMMITTED, generations)
    with core.lock:
        slots, words = _still(core, slots, words)
        payloads = _payloads(core, slots)
    found = sums(payloads, words, threads=1)
    with core.lock:
        rows = core.slots.rows(slots)
        same = core.slots.headers.words[rows] == words
        core.slots.headers.fields["checksum"][rows[same]] = found[same]
    return int(same.sum())


def verify(core: NodeCore, check: Check) -> bool:
    """Whether the slot still holds that object, with the bytes that its checksum was computed of."""
    slots = np.array([check.slot], dtype=np.uint32)
    words = words_of(SlotState.COMMITTED, np.array([check.generation], dtype=np.uint64))
    with core.lock:
        slots, words = _still(core, slots, words)
        if not len(slots):
            return False
        header = core.slots.headers.snapshot(core.slots.rows(slots))
        payload = _payloads(core, slots)
    if not _is_object(header, check):
        return False
    expected = header["checksum"]
    actual = sums(payload, expected)
    with core.lock:
        return bool(_still(core, slots, words)[0].size) and bool(actual == expected)


def _is_object(header: Headers, check: Check) -> bool:
    return (
        int(header["keyspace"][0]) == keyspace_word(check.keyspace)
        and int(header["rank"][0]) == check.rank
        and hash_column(header, "block_hash", int(header["hash_bytes"][0])) == check.block_hash
    )


def _still(core: NodeCore, slots: U32, words: U64) -> tuple[U32, U64]:
    """The part of `slots` whose headers have those words."""
    valid = core.slots.valid(slots)
    slots, words = slots[valid], words[valid]
    same = core.slots.headers.words[core.slots.rows(slots)] == words
    return slots[same], words[same]


def _payloads(core: NodeCore, slots: U32) -> Fragments:
    """Where their bytes lie: inside their slots, whatever a writer that maps the segment has made of their headers."""
    sizes = core.slots.allocator.slot_bytes[slots >> SLOT_INDEX_BITS]
    lengths = core.slots.headers.snapshot(core.slots.rows(slots))["length"]
    starts = core.slots.layout.data_offsets(slots, sizes)
    addresses = starts.astype(np.uint64) + np.uint64(address_of(core.slots.data))
    inside = np.minimum(lengths, sizes.astype(np.uint64))
    return Fragments(addresses, inside, np.arange(len(slots) + 1, dtype=np.int64))
