"""What readers ask of one table: probe, match, presence, locate, renew, describe."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW, NO_SEGMENT, view
from moonpool.master.entries import check_rank
from moonpool.master.flat import FlatTable
from moonpool.master.step import Step, check_count
from moonpool.master.table import Table
from moonpool.schemas.errors import InvalidParams, NotFound
from moonpool.schemas.messages import (
    Copy,
    Describe,
    DescribeKeyspace,
    Description,
    KeyspaceFacts,
    Locate,
    Located,
    Match,
    Matched,
    Presence,
    Present,
    Probe,
    Probed,
    ProbedRun,
    Renew,
    Renewed,
    RunSlice,
)
from moonpool.schemas.packed import (
    I64,
    U16,
    U32,
    U64,
    count_of,
    split_hashes,
    u16s,
    u64s,
)
from moonpool.schemas.runs import run_end
from moonpool.store_client import native

SPREAD_BLOCKS = 64
"""So many neighbours are read from one node: they lie in neighbouring slots, and move in few, large transfers."""

POSITIONS_MAX = 1 << 31
"""Of blocks in a chain."""

SAMPLE_ROWS = 1 << 16
"""Rows that are looked at to say how large objects are where each has a size of its own."""


def probe(table: Table, message: Probe, step: Step) -> Probed:
    """How far each run is ready, as far as its points tell, and a lease on the last row that is known."""
    chained = need_chained(table)
    until_s = step.until_s(message.lease_ms)
    size = table.spec.hash_bytes
    check_count(_points_of(message.runs, size), "runs")
    count_of(message.sample, 8, "sample")
    lengths = [0] * len(message.runs)
    follow, whole = b"", False
    for index, run in enumerate(message.runs):
        points, deepest = chained.ready_prefix(run.hashes)
        length = min(points * run.stride, run.count)
        if step.impaired:
            length, deepest = chained.live_prefix(length, deepest, step.usable)
        lengths[index] = length
        if length:
            table.lease(deepest, until_s)
        if length < run.count:  # what lies behind a gap is of no use
            if length and not step.impaired:  # from its first block on a short run is named whole
                rows, whole = chained.followers(deepest, run.stride - 1)
                follow = b"".join([table.hashes[row][:8] for row in rows])
                table.lease(rows[-1] if rows else deepest, until_s)
            break
    if message.sample_mask >= 0:
        table.policy.asked(u64s(message.sample), message.sample_mask, step.now_s)
    return Probed(lengths, table.policy.sample_mask, follow, whole)


def _points_of(runs: Sequence[ProbedRun], hash_bytes: int) -> int:
    """How many hashes they name. Raises InvalidParams where those are others than they should be."""
    total = 0
    for run in runs:
        first, count, stride = run.first, run.count, run.stride
        check_run(first, count)
        points = count_of(run.hashes, hash_bytes, "runs.hashes")
        if count < 1 or stride < 1 or points != -(-count // stride):
            allowed = "each stride-th hash of one block or more, and the last"
            raise InvalidParams(field="runs", value=f"{points} of {count} by {stride}", allowed=allowed)
        total += points
    return total


def match(table: Table, message: Match, step: Step) -> Matched:
    """Longest ready prefix of each stretch of a run, and a lease on its last row."""
    chained = need_chained(table)
    until_s = step.until_s(message.lease_ms)
    check_count(sum(len(hashes) for _, hashes in message.runs) // table.spec.hash_bytes, "runs")
    lengths: list[int] = []
    for position, hashes in message.runs:
        count = count_of(hashes, table.spec.hash_bytes, "runs.hashes")
        check_run(position, count)
        length, deepest = chained.ready_prefix(hashes)
        if step.impaired:
            length, deepest = chained.live_prefix(length, deepest, step.usable)
        if length:
            table.lease(deepest, until_s)
        lengths.append(length)
    return Matched(lengths)


def presence(table: Table, message: Presence, step: Step) -> Present:
    """Which rows of a flat keyspace are there, and leases on them that yield to a put in need."""
    if not isinstance(table, FlatTable):
        raise InvalidParams(field="keyspace", value="a chained one", allowed="flat ones; match chained ones")
    if message.rank >= 0:
        check_rank(message.rank, table.spec)
    check_count(count_of(message.hashes, table.spec.hash_bytes, "hashes"), "hashes")
    usable = step.usable if step.impaired else None
    return Present(table.presence(message.hashes, message.rank, step.until_s(message.ttl_ms), usable))


def renew(table: Table, message: Renew, step: Step) -> Renewed:
    """Leases and recency of rows that are in use."""
    hashes = split_hashes(message.hashes, table.spec.hash_bytes)
    check_count(len(hashes), "hashes")
    until_s = step.until_s(message.lease_ms)
    bits = bytearray(len(hashes))
    for index, row in enumerate(table.rows.get_all(hashes)):
        if row != NO_ROW and table.ready[row]:
            bits[index] = 1
            table.lease(row, until_s)
            table.use(row, step.now_s)
    return Renewed(bytes(bits))


def locate(table: Table, message: Locate, step: Step) -> Located:
    """Places of one rank. Chained: whole runs, or zeros where a run isn't all there. Flat: row by row."""
    check_rank(message.rank, table.spec)
    if isinstance(table, FlatTable):
        count = count_of(message.hashes, table.spec.hash_bytes, "hashes")
        check_count(count, "hashes")
        if native.HOT and table.plain:
            length = table.spec.shard_bytes[message.rank]
            found = native.find_places(table.native, message.hashes, message.rank, step.usable, length)
            if found is not None:
                segments, *columns = found
                if len(segments) == 2:  # the usual case
                    return Located([step.names[int.from_bytes(segments, "little")]], *columns)
                return Located([step.names[number] for number in u16s(segments).tolist()], *columns)
        rows = table.rows.find(message.hashes, table.spec.hash_bytes)
        rows = np.where(table.all_sound(rows, message.rank), rows, NO_ROW)
        return _located(table, message, rows, _within_reach(table, message.rank, rows, step), step)
    chained = need_chained(table)
    check_count(sum(run.count for run in message.runs), "runs")
    parts = [_run_rows(chained, message.rank, run, step) for run in message.runs]
    rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return _located(table, message, rows, rows >= 0, step)


def _run_rows(table: ChainedTable, rank: int, run: RunSlice, step: Step) -> I64:
    check_run(run.first, run.count)
    if run.count < 1 or len(run.deepest) != table.spec.hash_bytes:
        raise InvalidParams(field="runs", value=run, allowed="slices of one block or more")
    rows = table.run_rows(run.deepest, run.first, run.count)
    if rows is None or not _within_reach(table, rank, rows, step).all():
        return np.full(run.count, NO_ROW, dtype=np.int64)
    return rows


def _within_reach(
    table: Table, rank: int, rows: I64, step: Step
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    cells = rows * table.world + rank
    there = step.usable[view(table.which)[cells] if len(table) else np.full(len(rows), NO_SEGMENT)]
    for layer in table.layers.more:
        there |= step.usable[view(layer.which)[cells]]
    return np.asarray((rows >= 0) & there, dtype=np.bool_)


def _located(
    table: Table, message: Locate, rows: I64, here: np.ndarray[tuple[int], np.dtype[np.bool_]], step: Step
) -> Located:
    """Vectorised gather; rows that aren't `here` give zeros."""
    count, rank = len(rows), message.rank
    which, slots = np.zeros(count, "<u2"), np.zeros(count, "<u4")
    generations, lengths = np.zeros(count, "<u8"), np.zeros(count, "<u8")
    there = np.flatnonzero(here)
    names: list[bytes] = []
    if len(there):
        cells = rows[there] * table.world + rank
        segments, slots[there], generations[there] = _chosen_copies(table, cells, message.avoid, step)
        if (segments == segments[0]).all():  # the usual case, and much cheaper than sorting
            names = [step.names[segments[0]]]
        else:
            distinct, which[there] = np.unique(segments, return_inverse=True)
            names = [step.names[segment] for segment in distinct.tolist()]
        fixed = table.spec.shard_bytes[rank]
        lengths[there] = fixed if table.lengths is None else view(table.lengths)[cells]
    return Located(names, which.tobytes(), slots.tobytes(), generations.tobytes(), lengths.tobytes())


def _chosen_copies(table: Table, cells: I64, avoid: Sequence[bytes], step: Step) -> tuple[U16, U32, U64]:
    """(segments, slots, generations) of one copy of each cell, usable ones: where it isn't to be avoided, on the reader's
    host where there is one, else in turns, so that readers of a hot prefix spread over its copies, and one reader over several nodes."""
    layers = table.layers
    if not layers.count:
        return view(table.which)[cells], view(table.slots)[cells], view(table.generations)[cells]
    which = np.stack([view(layer.which)[cells] for layer in layers.all])
    near = np.isin(which, np.fromiter(step.near(), dtype=np.uint16))
    layers.turn += 1
    preferred = (np.arange(len(cells)) // SPREAD_BLOCKS + layers.turn) % len(layers.all)
    mine = np.arange(len(layers.all))[:, None] == preferred
    weights = step.usable[which] * (1 + 2 * near + mine)
    if avoid:
        names = frozenset(avoid)
        avoided = [index for index, name in enumerate(step.names) if name in names]
        weights = weights * np.where(np.isin(which, avoided), 1, 8)
    chosen = np.argmax(weights, axis=0)
    every = np.arange(len(cells))
    slots = np.stack([view(layer.slots)[cells] for layer in layers.all])
    generations = np.stack([view(layer.generations)[cells] for layer in layers.all])
    return which[chosen, every], slots[chosen, every], generations[chosen, every]


def describe(table: Table, message: Describe, step: Step) -> Description:
    """Everything known of one block. Raises NotFound."""
    row = table.rows.get(message.block_hash) if message.block_hash else NO_ROW
    if row == NO_ROW:
        raise NotFound(key=message.block_hash.hex())
    pinned = row in table.pins
    pin_s = table.pins.until_s(row) - step.now_s if pinned else 0.0
    places = [(rank, place) for rank in table.ranks_of(row) for place in table.places(row, rank)]
    return Description(
        ready=bool(table.ready[row]),
        position=table.position_of(row),
        parent=table.parent_of(row),
        copies=[
            Copy(rank, step.names[place.segment], place.slot, place.generation, place.length)
            for rank, place in places
        ],
        children=table.children_of(row),
        lease_ms=max(0, round((max(table.leased_until_s[row], table.soft_until_s(row)) - step.now_s) * 1000)),
        pin_ms=-1 if pin_s == math.inf else max(0, round(pin_s * 1000)),
        pinned=pinned,
        age_ms=max(0, round((step.now_s - table.last_use_s[row]) * 1000)),
    )


def describe_keyspace(table: Table, message: DescribeKeyspace, step: Step) -> KeyspaceFacts:
    """How much there is of it."""
    copies = sum(table.copies.values())
    traffic = table.traffic
    return KeyspaceFacts(
        len(table),
        copies,
        round(copies * mean_copy_bytes(table)),
        len(table.pins),
        traffic.requests,
        traffic.asked_blocks,
        traffic.hit_blocks,
        table.replicas,
    )


def mean_copy_bytes(table: Table) -> float:
    """Of the ranks' shards, or of the first rows where sizes vary: no request may look at every row."""
    if table.lengths is None:
        return sum(table.spec.shard_bytes) / table.world
    cells = min(table.columns.count, SAMPLE_ROWS) * table.world
    if not cells:
        return 0.0
    there = view(table.which)[:cells] != NO_SEGMENT
    found = int(np.count_nonzero(there))
    return int(view(table.lengths)[:cells][there].sum()) / found if found else 0.0


def need_chained(table: Table) -> ChainedTable:
    """The table, which must be chained. Raises InvalidParams."""
    if not isinstance(table, ChainedTable):
        raise InvalidParams(field="keyspace", value="a flat one", allowed="chained ones")
    return table


def check_run(first: int, count: int) -> None:
    """Raises InvalidParams where blocks first .. first+count don't lie in one run."""
    if first < 0 or first >= POSITIONS_MAX or first + count > run_end(first):
        raise InvalidParams(
            field="runs",
            value=f"{count} blocks from {first}",
            allowed="blocks of one run (see schemas/runs.py)",
        )
