"""Removing rows, and pinning them against removal."""

from __future__ import annotations

import math

import numpy as np

from moonpool.master.columns import NO_ROW, view
from moonpool.master.entries import check_rank
from moonpool.master.flat import FlatTable
from moonpool.master.step import Predicate, Step, check_count
from moonpool.master.table import Table
from moonpool.schemas.errors import InvalidParams, Overloaded
from moonpool.schemas.messages import Clear, Pin, Remove, Removed, Unpin
from moonpool.schemas.packed import join_hashes, split_hashes

REMOVE_MAX = 16384
"""Hashes named by one Remove: they are kept for nodes that are away."""

COPIES_MAX = 1 << 18
"""Copies that one Remove takes at once, the rest goes in slices: one Drop must be able to name them all, or a node
would keep what the index forgot."""

SLICE_ROWS = 4096

PINS_MAX = 65536


def remove(table: Table, message: Remove, step: Step) -> Removed:
    """Removes rows with all that hangs on them. Nodes are told the hashes even where there is no row: a slot may
    be under way. What is too much for one request is unready at once and goes with the next ticks."""
    hashes = split_hashes(message.hashes, table.spec.hash_bytes)
    if len(hashes) > REMOVE_MAX:
        raise InvalidParams(field="hashes", value=f"{len(hashes)} blocks", allowed=f"{REMOVE_MAX} a request")
    if message.rank >= 0:
        return _remove_rank(table, message, hashes, step)
    if message.dry_run:
        return _would_remove(table, message, hashes, step)
    count = skipped = 0
    copies_left = COPIES_MAX
    doomed: list[bytes] = []
    for block_hash in hashes:
        row = table.rows.get(block_hash)
        if row in table.doomed:
            doomed.append(block_hash)
            step.postponed |= table.copies.keys()
            continue
        rows = table.subtree(row, table.columns.count) if row != NO_ROW else []
        assert rows is not None, "a subtree larger than its table"
        protected = 0 if message.force else sum(table.protected(other, step.now_s) for other in rows)
        if protected:
            skipped += protected
            continue
        doomed.append(block_hash)
        count += sum(table.committed[other] != 0 for other in rows)
        if len(rows) * table.world > copies_left:
            table.doom(row, step.now_s)
            step.postponed |= table.copies.keys()
            continue
        copies_left -= len(rows) * table.world
        table.discard_all(rows, step.now_s, step.drops)
    if doomed:
        step.predicate = Predicate(table.keyspace, join_hashes(doomed), False)
    return Removed(count, skipped, [])


def _would_remove(table: Table, message: Remove, hashes: list[bytes], step: Step) -> Removed:
    """What `remove` would answer, each row counted once."""
    count = skipped = 0
    seen: set[int] = set()
    for block_hash in hashes:
        row = table.rows.get(block_hash)
        rows = table.subtree(row, table.columns.count) if row != NO_ROW and row not in seen else []
        assert rows is not None, "a subtree larger than its table"
        fresh = [other for other in rows if other not in seen]
        protected = 0 if message.force else sum(table.protected(other, step.now_s) for other in fresh)
        if protected:
            skipped += protected
            continue
        seen.update(fresh)
        count += sum(table.committed[other] != 0 for other in fresh)
    return Removed(count, skipped, [])


def remove_some(table: Table, rows: int, step: Step) -> int:
    """Goes on with what was too much for one request, from the leaves up. Returns how many of `rows` are left."""
    while table.doomed and rows > 0:
        path = [next(iter(table.doomed))]
        while path and rows > 0:
            child = table.child_of(path[-1])
            if child != NO_ROW:
                path.append(child)
                continue
            row = path.pop()
            rows -= 1
            if table.hashes[row]:  # placeholders leave with the last row that hung on them
                table.discard(row, step.now_s, step.drops)
    return rows


def _remove_rank(table: Table, message: Remove, hashes: list[bytes], step: Step) -> Removed:
    """One rank's copies of flat rows. Exact places: what is being written isn't looked for."""
    if not isinstance(table, FlatTable):
        raise InvalidParams(field="rank", value=message.rank, allowed="-1, except in flat keyspaces")
    check_rank(message.rank, table.spec)
    count = skipped = 0
    for block_hash in hashes:
        row = table.rows.get(block_hash)
        if row == NO_ROW or not table.committed[row] >> message.rank & 1:
            continue
        if table.protected(row, step.now_s) and not message.force:
            skipped += 1
            continue
        count += 1
        if message.dry_run:
            continue
        for place in table.places(row, message.rank):
            step.drops.add(place.segment, table.keyspace, message.rank, block_hash, *place[1:3])
            table.drop_copy(row, message.rank, place.segment, step.now_s)
    return Removed(count, skipped, [])


def clear(table: Table, message: Clear, step: Step) -> Removed | None:
    """What a Clear may do: None says go on. Unless forced, one leased or pinned row keeps the whole keyspace."""
    leased = view(table.leased_until_s) > step.now_s if len(table) else np.zeros(0, dtype=np.bool_)
    protected = int(leased.sum()) + sum(not leased[row] for row in table.pins.rows())
    if protected and not message.force:
        return Removed(0, protected, [])
    if not message.dry_run:
        step.predicate = Predicate(table.keyspace, b"", True)
    return None


def pin(table: Table, message: Pin, pins: int, step: Step) -> int:
    """Pins rows that have copies; returns how many. `pins`: how many there are in all tables. Raises Overloaded."""
    hashes = split_hashes(message.hashes, table.spec.hash_bytes)
    check_count(len(hashes), "hashes")
    if message.ttl_ms < 0:
        raise InvalidParams(field="ttl_ms", value=message.ttl_ms, allowed="0 (no end) or more")
    rows = [row for row in table.rows.get_all(hashes) if row != NO_ROW and table.committed[row]]
    if pins + sum(row not in table.pins for row in set(rows)) > PINS_MAX:
        raise Overloaded(what="the list of pins", limit=PINS_MAX)
    until_s = step.now_s + message.ttl_ms / 1000 if message.ttl_ms else math.inf
    for row in rows:
        table.pins.add(row, until_s)
    return len(rows)


def unpin(table: Table, message: Unpin, step: Step) -> int:
    """Returns how many were pinned."""
    hashes = split_hashes(message.hashes, table.spec.hash_bytes)
    check_count(len(hashes), "hashes")
    rows = [row for row in table.rows.get_all(hashes) if row != NO_ROW and table.pins.remove(row)]
    for row in rows:
        table.candidates.add_everywhere(row, step.now_s)
    return len(rows)
