"""What could not be read is read elsewhere: into the right memory, and nobody else is blamed for it."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest

from moonpool.schemas.messages import Done, Located, ReportBad, Status
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.gets import Getter, Places, Wanted
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.workers import Workers

A, B, C, D = b"A", b"B", b"C", b"D"
COUNT = 3
LENGTHS = np.full(COUNT, 4, dtype=np.uint64)


def places(*where: tuple[bytes, int]) -> Places:
    """(segment, slot) of each object; the generation is the slot's number and ten."""
    segments = sorted({segment for segment, _ in where})
    which = np.array([segments.index(segment) for segment, _ in where], dtype="<u2")
    slots = np.array([slot for _, slot in where], dtype="<u4")
    generations = (slots + 10).astype("<u8")
    columns = (column.tobytes() for column in (which, slots, generations, LENGTHS))
    return Places(Located(segments, *columns), COUNT, "")


class Link:
    """A node: reads of its slots end as told, and bring four bytes of the slot's number."""

    def __init__(self, outcome: Status) -> None:
        self.outcome = outcome

    def read(self, batch: ReadBatch, deadline_s: float) -> np.ndarray[Any, Any]:
        if self.outcome is Status.OK:
            for i, slot in enumerate(batch.slots.tolist()):
                at = int(batch.into.addresses[batch.into.offsets[i]])
                ctypes.memmove(at, bytes([slot]) * 4, 4)
        return np.full(len(batch.slots), self.outcome, dtype=np.uint8)


class Nodes:
    """`outcomes`: of each segment."""

    def __init__(self, outcomes: dict[bytes, Status]) -> None:
        self.outcomes = outcomes

    def find(self, segment: bytes, deadline_s: float) -> Link:
        return Link(self.outcomes[segment])

    def started_anew(self, *_: object) -> None:
        return None


class Reader:
    """A getter, and what it says of bad blocks."""

    name = "paper"

    def __init__(self, workers: Workers, **outcomes: Status) -> None:
        nodes = Nodes({name.encode(): outcome for name, outcome in outcomes.items()})
        self.getter = Getter(cast(Any, self), cast(Any, nodes), workers, verify=False)
        self.reported: list[bytes] = []
        self.memory = np.zeros((COUNT, 4), dtype=np.uint8)
        self.avoided: list[bytes] = []

    def ask(self, message: ReportBad, reply: object, deadline_s: float) -> Done:
        self.reported.append(message.segment)
        return Done(1)

    def read(self, first: Places, now: Places) -> list[Status]:
        def again(avoid: Sequence[bytes]) -> Places:
            self.avoided = list(avoid)
            return now

        starts = (self.memory.ctypes.data + 4 * np.arange(COUNT, dtype=np.uint64)).reshape(-1, 1)
        into = Fragments.grid(starts.astype(np.uint64), np.array([[4]], dtype=np.uint64))
        wanted = Wanted(b"k" * 16, 0, [bytes([i]) * 16 for i in range(COUNT)], into, LENGTHS)
        statuses = self.getter.read(wanted, first, again, time.monotonic() + 5)
        return [Status(status) for status in statuses.tolist()]


@pytest.fixture
def workers() -> Iterator[Workers]:
    found = Workers(2, "reader")
    yield found
    found.close()


@pytest.mark.parametrize(
    "first", [dict(zip((A, B, D), order, strict=True)) for order in itertools.permutations(range(COUNT))]
)
def test_each_object_comes_into_its_own_memory(workers: Workers, first: dict[bytes, int]) -> None:
    """One node can't be reached, one has dropped its object, one too, and all lie on another one now."""
    reader = Reader(workers, A=Status.FAILED, B=Status.GONE, C=Status.OK, D=Status.MISSING)
    before = places(*((segment, slot) for segment, slot in first.items()))
    assert reader.read(before, places((C, 1), (C, 2), (C, 3))) == [Status.OK] * COUNT
    assert reader.memory.tolist() == [[1] * 4, [2] * 4, [3] * 4]
    assert reader.avoided == [A] and not reader.reported


def test_the_place_that_was_read_is_reported_and_not_where_it_lies_too(workers: Workers) -> None:
    reader = Reader(workers, A=Status.FAILED, B=Status.CORRUPT, C=Status.OK)
    statuses = reader.read(places((A, 1), (B, 2), (C, 3)), places((C, 1), (C, 2), (C, 3)))
    assert statuses == [Status.OK, Status.CORRUPT, Status.OK]
    assert reader.reported == [B]


def test_what_is_corrupt_at_its_new_place_is_reported_there(workers: Workers) -> None:
    reader = Reader(workers, A=Status.FAILED, B=Status.OK, C=Status.CORRUPT)
    assert reader.read(places((A, 1), (B, 2), (B, 3)), places((C, 1), (B, 2), (B, 3))) == [
        Status.CORRUPT,
        Status.OK,
        Status.OK,
    ]
    assert reader.reported == [C]


def test_one_that_lies_nowhere_else_stays_failed_and_is_not_reported(workers: Workers) -> None:
    reader = Reader(workers, A=Status.FAILED, B=Status.OK)
    where = places((A, 1), (B, 2), (B, 3))
    assert reader.read(where, where) == [Status.FAILED, Status.OK, Status.OK]
    assert not reader.reported
