"""Copies that arrive: they count only while the index has that which they were read from.

Between the reading and the report of a copy its block may have been removed, evicted, or put anew with other bytes. What says
so can't name the copy, which no index knows yet. So the index asks once, when the copy comes. A copy that is refused is
ordered again, where it is still wanted.
"""

from __future__ import annotations

import numpy as np

from moonpool.master.columns import NO_ROW
from moonpool.master.replicas.planner import CopyPlanner
from moonpool.master.shard import ShardIndex
from moonpool.master.step import Step
from moonpool.master.table import Table
from moonpool.master.withheld import keep
from moonpool.schemas.messages import Entries
from moonpool.schemas.packed import split_hashes, u16s


def admitted(op: Entries, planner: CopyPlanner, index: ShardIndex, target: int, step: Step) -> Entries:
    """The entries of copies that the node was told to make, and whose source is where it was read. The node is told to
    drop the others."""
    table = index.table(op.keyspace)
    hashes = split_hashes(op.hashes, table.spec.hash_bytes)
    ranks = u16s(op.ranks).tolist()
    stays = [
        _is_current(planner, table, target, step.shard, rank, one)
        for rank, one in zip(ranks, hashes, strict=False)
    ]
    return keep(op, np.array(stays, dtype=np.bool_), table.spec, target, step.drops)


def _is_current(
    planner: CopyPlanner, table: Table, target: int, shard: int, rank: int, block_hash: bytes
) -> bool:
    cell = (table.keyspace, rank, block_hash)
    order = planner.order_of(cell)
    if order is None or (order.target, order.shard) != (target, shard) or cell not in order.read_from:
        return False
    row = table.rows.get(block_hash)
    return row != NO_ROW and table.is_at(row, rank, order.source, *order.read_from[cell])
