"""Several requests at once by one thread: all are sent before the first answer is waited for.

A thread a request would cost more than the masters need to answer.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from moonpool.schemas.errors import InternalError, MoonpoolError
from moonpool.schemas.messages import Message
from moonpool.store_client.master import Asked

_UNDECIDED = InternalError(detail="a request that was neither answered nor refused")

Outcome = Message | MoonpoolError
"""What a request led to: an answer, or what it would have raised."""


def exchange(begins: Sequence[Callable[[], Asked]], deadline_s: float) -> list[Outcome]:
    """The outcome of each. They are begun in order; whoever is slow to answer keeps nobody else's answer back."""
    outcomes: list[Outcome] = [_UNDECIDED] * len(begins)
    under_way: dict[int, Asked] = {}
    try:
        for index, begin in enumerate(begins):
            try:
                under_way[index] = begin()
            except MoonpoolError as error:
                outcomes[index] = error
        for index in _as_they_answer(under_way, deadline_s):
            asked = under_way.pop(index)
            try:
                outcomes[index] = asked.finish(deadline_s)
            except MoonpoolError as error:
                outcomes[index] = error
    finally:
        for asked in under_way.values():
            asked.abandon()
    return outcomes


def _as_they_answer(under_way: Mapping[int, Asked], deadline_s: float) -> Iterator[int]:
    """Their numbers, those that have answered first; at the deadline all that are left."""
    descriptors = {index: asked.fileno() for index, asked in under_way.items()}
    waiting = {descriptor: index for index, descriptor in descriptors.items() if descriptor >= 0}
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    yield from [index for index, descriptor in descriptors.items() if descriptor < 0]
    while waiting:
        left_s = deadline_s - time.monotonic()
        ready = poll.poll(max(0, left_s * 1000))
        if not ready:
            yield from list(waiting.values())
            return
        for descriptor, _ in ready:
            poll.unregister(descriptor)
            yield waiting.pop(descriptor)
