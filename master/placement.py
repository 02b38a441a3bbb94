"""Which segment a put goes to: one on the writer's host, else the one with most room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A segment that may be written to."""

    index: int
    segment: bytes
    host: str
    free_bytes: int
    page_bytes: int


def choose(candidates: Iterable[Candidate], size_bytes: int, promised: Mapping[int, int]) -> Candidate | None:
    """The segment with most room, of those that take objects of `size_bytes`.

    A writer's own host is asked first and wins even when it is full: its node makes room, and the copy needs no
    network. Promised bytes count as used, so that writers who ask at the same moment don't all go to the same
    node. Equal ones go by segment id.
    """
    fitting = [candidate for candidate in candidates if candidate.page_bytes >= size_bytes]
    return max(fitting, key=lambda c: (c.free_bytes - promised.get(c.index, 0), c.segment), default=None)
