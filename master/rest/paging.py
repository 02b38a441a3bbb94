"""Pages: every list is given out in pieces, each naming where the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")
Other = TypeVar("Other")

LIMIT_MAX = 1000
PLACE = f"000003-{'00' * 16}-0000000017-1760000000000"
"""An example of a block's place in lists, see row_cursor.py."""

WORDS = "where the page begins: `next_cursor` of the page before; none: the first"

Cursor = Annotated[
    str | None,
    Query(max_length=512, description=WORDS, examples=["node"]),
]

RowCursor = Annotated[
    str | None,
    Query(pattern=r"^[0-9]{6}-[0-9a-f]{32}-[0-9]{10}-[0-9]{1,19}$", description=WORDS, examples=[PLACE]),
]
HashCursor = Annotated[
    str | None, Query(pattern=r"^([0-9a-f]{32}|[0-9a-f]{64})$", description=WORDS, examples=["ab" * 32])
]

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="items of a page at most")]


class Page(BaseModel, Generic[Item]):
    """A piece of a list."""

    # A generic model's docstring does not reach its schemas.
    model_config = ConfigDict(json_schema_extra={"description": "A piece of a list."})

    items: list[Item] = Field(description="in the order of the list")
    next_cursor: str | None = Field(
        description="ask with it for the next page; null: this was the last", examples=[None]
    )


def page_of(items: Sequence[Item], key: Callable[[Item], str], cursor: str | None, limit: int) -> Page[Item]:
    """The page that follows `cursor` of items that are sorted by `key`, whose last one is the next cursor."""
    rest = [item for item in items if cursor is None or key(item) > cursor]
    return Page(items=rest[:limit], next_cursor=key(rest[limit - 1]) if len(rest) > limit else None)
