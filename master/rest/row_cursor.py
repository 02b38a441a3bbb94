"""Where a block stands in lists of blocks: its shard, keyspace and number in the index, in that order.

Every master knows the place of another master's blocks in this order, so that pages of a whole cluster can be put together from
each master's own. A shard that has changed hands numbers its blocks anew: its epoch tells, and the page begins with its first.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from moonpool.master.rest.parts import MasterParts
from moonpool.master.table import Table
from moonpool.schemas.errors import InvalidParams

PATTERN = re.compile(r"([0-9]{6})-([0-9a-f]{32})-([0-9]{10})-([0-9]{1,19})")


class Place(NamedTuple):
    """Of one block."""

    shard: int
    keyspace: bytes
    row: int
    epoch: int


def cursor_of(parts: MasterParts, shard: int, table: Table, row: int) -> str:
    """As text that sorts as places do."""
    return f"{shard:06}-{table.keyspace.hex()}-{row:010}-{parts.core.look.epoch_of(shard)}"


def parse_cursor(cursor: str | None) -> Place | None:
    """Behind which block a page begins; None: with the first. Raises InvalidParams."""
    if cursor is None:
        return None
    found = PATTERN.fullmatch(cursor)
    if found is None:
        raise InvalidParams(field="cursor", value=cursor[:64], allowed="next_cursor of an earlier page")
    shard, keyspace, row, epoch = found.groups()
    return Place(int(shard), bytes.fromhex(keyspace), int(row), int(epoch))


def first_row_of(parts: MasterParts, shard: int, table: Table, after: Place | None) -> int | None:
    """The first row of a table that belongs behind a place; None: all of it was on earlier pages."""
    if after is None or (shard, table.keyspace) > after[:2]:
        return 0
    if (shard, table.keyspace) < after[:2]:
        return None
    return after.row + 1 if parts.core.look.epoch_of(shard) == after.epoch else 0
