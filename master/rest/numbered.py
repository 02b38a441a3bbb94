"""Lists of what each master numbers by itself, events for one, as one list.

A cursor says how far one has read at each master: `<number>@<master>,<number>@<master>`. Of a master without others it is the
number alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Annotated, Protocol, TypeVar

from fastapi import Header, Query

from moonpool.master.membership.seat import advertised
from moonpool.master.rest.paging import WORDS
from moonpool.master.rest.parts import MasterParts

NUMBER_MAX = 10**15 - 1
CURSOR_CHARS_MAX = 8192
EXAMPLE = "1760000000012@10.0.0.7:50051,1760000000017@10.0.0.8:50051"

_NUMBER = r"[0-9]{1,15}"
_NAMED = rf"{_NUMBER}@[A-Za-z0-9.:_\[\]-]{{1,255}}"
PATTERN = rf"^({_NUMBER}|{_NAMED}(,{_NAMED})*)$"

NumbersCursor = Annotated[
    str | None, Query(max_length=CURSOR_CHARS_MAX, pattern=PATTERN, description=WORDS, examples=[EXAMPLE])
]
LastEvent = Annotated[
    str | None,
    Header(
        max_length=CURSOR_CHARS_MAX,
        pattern=PATTERN,
        description="id of the newest event that was seen; none: only new ones",
        examples=[EXAMPLE],
    ),
]

Positions = dict[str, int]
"""The number that was last seen of each master, by its address."""


class Numbered(Protocol):
    """An item of such a list."""

    master: str
    number: int


Thing = TypeVar("Thing", bound=Numbered)


def own_address(parts: MasterParts) -> str:
    """This master's name in cursors."""
    return advertised(parts.settings.advertise, parts.handler.address)


def parse_positions(cursor: str | None, here: str) -> Positions:
    """Of a cursor that PATTERN allows. A number alone is of this master."""
    positions: Positions = {}
    for part in cursor.split(",") if cursor else ():
        number, _, master = part.partition("@")
        positions[master or here] = int(number)
    return positions


def cursor_of(positions: Positions, here: str, *, alone: bool) -> str:
    """The reverse. `alone`: there are no other masters, or one of them asks for this one's part."""
    if alone:
        return str(positions.get(here, 0))
    return ",".join(f"{number}@{master}" for master, number in sorted(positions.items()))


def first_of(
    lists: Iterable[list[Thing]], positions: Positions, limit: int, when: Callable[[Thing], float]
) -> list[Thing]:
    """The first items of several masters' lists, sorted by `when`; each master's keep their order, as clocks may not.
    `positions` goes on behind them."""
    items = list(islice(heapq.merge(*lists, key=when), limit))
    positions.update((item.master, item.number) for item in items)
    return items
