"""Walks over many rows in slices, so that the master's clients wait for one slice at most."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import view
from moonpool.master.rest.gateway import Slices
from moonpool.master.rest.paging import Page
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.rows import Block, describe
from moonpool.master.table import Table
from moonpool.schemas.errors import InvalidParams

ROWS_A_SLICE = 1 << 16
DESCRIBED_A_SLICE = 64

Wanted = Callable[[Table, slice], NDArray[np.bool_]]
"""Which rows of a stretch are wanted."""


def any_row(table: Table, rows: slice) -> NDArray[np.bool_]:
    """Rows that have a copy."""
    wanted: NDArray[np.bool_] = view(table.committed)[rows] != 0
    return wanted


def first_row(table: Table, rows: slice) -> NDArray[np.bool_]:
    """Rows that chains begin with; of flat keyspaces all."""
    wanted = any_row(table, rows)
    if isinstance(table, ChainedTable):
        wanted &= view(table.positions)[rows] == 0
    return wanted


def pinned_row(table: Table, rows: slice) -> NDArray[np.bool_]:
    """Pinned rows."""
    wanted = np.zeros(len(view(table.committed)[rows]), dtype=np.bool_)
    pinned = np.array(table.pins.rows(), dtype=np.int64) - rows.start
    wanted[pinned[(pinned >= 0) & (pinned < len(wanted))]] = True
    return wanted


def blocks_page(
    parts: MasterParts, tables: list[tuple[int, Table]], wanted: Wanted, cursor: str | None, limit: int
) -> Slices[Page[Block]]:
    """A page of blocks in the order of their numbers in the index. The cursor is "<table>-<row>"."""
    at, first = parse_cursor(cursor)
    found: list[Block] = []
    while at < len(tables):
        shard, table = tables[at]
        while first < table.columns.count:
            rows = slice(first, first + ROWS_A_SLICE)
            for row in (np.flatnonzero(wanted(table, rows)) + first).tolist():
                if len(found) == limit:
                    return Page(items=found, next_cursor=f"{at}-{row}")
                if not table.hashes[row]:
                    continue
                found.append(describe(parts, shard, table, row))
                if len(found) % DESCRIBED_A_SLICE == 0:
                    yield
            first += ROWS_A_SLICE
            yield
        at, first = at + 1, 0
    return Page(items=found, next_cursor=None)


def parse_cursor(cursor: str | None) -> tuple[int, int]:
    """(table, row) where the page begins. Raises InvalidParams."""
    if cursor is None:
        return 0, 0
    if re.fullmatch(r"[0-9]{1,6}-[0-9]{1,10}", cursor) is None:
        raise InvalidParams(field="cursor", value=cursor[:64], allowed="next_cursor of an earlier page")
    table, _, row = cursor.partition("-")
    return int(table), int(row)
