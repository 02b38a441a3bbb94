"""Walks over many rows in slices, so that the master's clients wait for one slice at most."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW, view
from moonpool.master.rest.gateway import Slices
from moonpool.master.rest.paging import Page
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.row_cursor import first_row_of, parse_cursor
from moonpool.master.rest.rows import Block, describe
from moonpool.master.table import Table
from moonpool.schemas.access import Identity

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
    """A page of this master's blocks, in the order of row_cursor.py."""
    after = parse_cursor(cursor)
    found: list[Block] = []
    for shard, table in sorted(tables, key=lambda pair: (pair[0], pair[1].keyspace)):
        first = first_row_of(parts, shard, table, after)
        while first is not None and first < table.columns.count:
            rows = slice(first, first + ROWS_A_SLICE)
            for row in (np.flatnonzero(wanted(table, rows)) + first).tolist():
                if not table.hashes[row]:
                    continue
                if len(found) == limit:
                    return Page(items=found, next_cursor=found[-1].cursor)
                found.append(describe(parts, shard, table, row))
                if len(found) % DESCRIBED_A_SLICE == 0:
                    yield
            first += ROWS_A_SLICE
            yield
    return Page(items=found, next_cursor=None)


def named_page(
    parts: MasterParts,
    identity: Identity,
    hashes: dict[bytes, list[bytes]],
    cursor: str | None,
    limit: int,
) -> Slices[Page[Block]]:
    """The same of blocks that are named, by keyspace."""
    after = parse_cursor(cursor)
    rows: list[tuple[int, Table, int]] = []
    tables = [pair for pair in parts.core.look.tables() if pair[1].keyspace in hashes]
    for shard, table in sorted(tables, key=lambda pair: (pair[0], pair[1].keyspace)):
        first = first_row_of(parts, shard, table, after)
        if first is None or not identity.sees(table.spec.tenant):
            continue
        there = {table.rows.get(one) for one in hashes[table.keyspace]} - {NO_ROW}
        rows += [(shard, table, row) for row in sorted(there) if row >= first]
        yield
        if len(rows) > limit:
            break
    items: list[Block] = []
    for shard, table, row in rows[:limit]:
        items.append(describe(parts, shard, table, row))
        if len(items) % DESCRIBED_A_SLICE == 0:
            yield
    return Page(items=items, next_cursor=items[-1].cursor if len(rows) > limit else None)
