"""Several exchanges with one server by one thread: while one waits for its answer, another one goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable

Steps = Generator[None, None, bool]
"""Stops where it has asked something and can do nothing but wait for the answer. False: no others are to begin."""


def take_turns(steps: Iterable[Steps], at_once: int) -> None:
    """Begins them in order, so many at a time, and goes on with the one that has waited longest."""
    left = iter(steps)
    waiting: deque[Steps] = deque()
    more = True
    try:
        while True:
            mine = next(left, None) if more and len(waiting) < at_once else None
            if mine is None:
                if not waiting:
                    return
                mine = waiting.popleft()
            try:
                next(mine)
            except StopIteration as ended:
                more = more and ended.value
            else:
                waiting.append(mine)
    finally:
        for mine in waiting:
            mine.close()
