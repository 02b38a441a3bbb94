"""Ops of the report streams, applied to one shard's tables. Rows come from here and from nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moonpool.master.bad_reports import BadReports
from moonpool.master.columns import NO_ROW
from moonpool.master.commits import commit
from moonpool.master.copies import COPIES_MAX
from moonpool.master.entries import check_entries, check_rank, read_entries, read_locations
from moonpool.master.flat import FlatTable
from moonpool.master.promises import Promises, Rank
from moonpool.master.step import Step
from moonpool.master.table import Table
from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.messages import Checked, Done, Entries, Freed, Moved, Obeyed, Op, Refused, Report
from moonpool.schemas.packed import U16, count_of, pack_u64, split_hashes, u16s, u32s, u64s


def read_orders(op: Obeyed) -> list[tuple[int, int]]:
    """(epoch, drop id) of each. Raises InvalidParams."""
    words = u64s(op.orders).tolist() if count_of(op.orders, 16, "obeyed.orders") else []
    return list(zip(words[::2], words[1::2], strict=True))


def acknowledgement(report: Report, step: Step) -> Done | Refused:
    """The answer to a report that was applied."""
    count = len(report.ops)
    if not step.refused:
        return Done(count)
    return Refused(count, pack_u64(list(step.refused)), bytes(step.refused.values()))


TableOf = Callable[[bytes], Table]
"""The table of a keyspace; raises KeyspaceUnknown."""


def check_op(table_of: TableOf, op: Op) -> None:
    """Raises KeyspaceUnknown or InvalidParams where the op can't be applied."""
    if isinstance(op, Entries):
        check_entries(op, table_of(op.keyspace).spec)
    elif isinstance(op, (Freed, Moved)):
        read_locations(op, table_of(op.keyspace).spec)
    elif isinstance(op, Obeyed):
        read_orders(op)
    elif isinstance(op, Checked):
        spec = table_of(op.keyspace).spec
        check_rank(op.rank, spec)
        if len(op.block_hash) != spec.hash_bytes:
            raise InvalidParams(
                field="checked.block_hash", value=op.block_hash, allowed=f"{spec.hash_bytes} bytes"
            )


def apply_op(
    table_of: TableOf, promises: Promises, bad_reports: BadReports, segment: int, op: Op, step: Step
) -> None:
    """Applies an op that `check_op` has passed. Ops that concern no row are the core's."""
    if isinstance(op, Entries):
        _commit(table_of(op.keyspace), promises, segment, op, step)
    elif isinstance(op, Freed):
        _free(table_of(op.keyspace), segment, op, step)
    elif isinstance(op, Moved):
        _move(table_of(op.keyspace), segment, op)
    elif isinstance(op, Checked):
        _settle_check(table_of(op.keyspace), bad_reports, segment, op, step)


def adopt(table: Table, promises: Promises, segment: int, op: Entries, now_s: float) -> int | None:
    """The short way of new rows of a flat keyspace. Returns their payload bytes; None, and nothing has changed, where they
    are something else. Raises as `check_op`."""
    check_entries(op, table.spec)
    if op.copied or not isinstance(table, FlatTable):
        return None
    items = (op.ranks, op.slots, op.generations, op.lengths)
    size_bytes = table.adopt_packed(segment, op.hashes, items, now_s)
    if size_bytes is not None and len(promises):
        _end(promises, op.keyspace, u16s(op.ranks), split_hashes(op.hashes, table.spec.hash_bytes))
    return size_bytes


def _commit(table: Table, promises: Promises, segment: int, op: Entries, step: Step) -> None:
    if adopt(table, promises, segment, op, step.now_s) is not None:
        return  # as most are, also among others
    entries = read_entries(op, table.spec)
    table.layers.ordered |= op.copied
    # What was ordered is wanted. After a take-over nobody knows which of two copies was there first.
    wanted = op.copied or (step.naming and table.layers.ordered)
    copies_max = COPIES_MAX if wanted else 1
    step.refused |= commit(table, segment, entries, step.usable, step.now_s, step.drops, copies_max)
    if len(promises):
        _end(promises, op.keyspace, entries.ranks, entries.hashes)


def _end(promises: Promises, keyspace: bytes, ranks: U16, hashes: list[bytes]) -> None:
    if len(ranks) and (ranks == ranks[0]).all():  # the usual case
        promises.end_all(Rank(keyspace, int(ranks[0])), hashes)
        return
    for rank in np.unique(ranks).tolist():
        mine = np.flatnonzero(ranks == rank).tolist()
        promises.end_all(Rank(keyspace, rank), [hashes[index] for index in mine])


def _free(table: Table, segment: int, op: Freed, step: Step) -> None:
    if (table.rows.find(op.hashes, table.spec.hash_bytes) == NO_ROW).all():
        return  # as after every eviction
    freed = read_locations(op, table.spec)
    places = zip(freed.hashes, freed.ranks, freed.slots, freed.generations, strict=True)
    for block_hash, rank, slot, generation in places:
        row = table.rows.get(block_hash)  # looked up one by one: a row may leave with the one before it
        if row != NO_ROW and table.is_at(row, rank, segment, slot, generation):
            table.drop_copy(row, rank, segment, step.now_s)


def _move(table: Table, segment: int, op: Moved) -> None:
    moved = read_locations(op, table.spec)
    new_places = zip(u32s(op.new_slots).tolist(), u64s(op.new_generations).tolist(), strict=True)
    places = zip(moved.hashes, moved.ranks, moved.slots, moved.generations, new_places, strict=True)
    for block_hash, rank, slot, generation, (new_slot, new_generation) in places:
        row = table.rows.get(block_hash)
        if row != NO_ROW and table.is_at(row, rank, segment, slot, generation):
            table.move(row, rank, segment, new_slot, new_generation)


def _settle_check(table: Table, bad_reports: BadReports, segment: int, op: Checked, step: Step) -> None:
    row = table.rows.get(op.block_hash)
    if row == NO_ROW or not table.is_at(row, op.rank, segment, op.slot, op.generation):
        return
    bad_reports.answered((op.keyspace, op.rank, op.block_hash), step.now_s)
    if op.good:
        table.clear_doubt(row, op.rank)
    else:
        step.drops.add(segment, op.keyspace, op.rank, op.block_hash, op.slot, op.generation)
        table.drop_copy(row, op.rank, segment, step.now_s)
