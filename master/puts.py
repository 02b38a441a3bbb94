"""put_start: may these blocks be written, and where? Probes the index and keeps promises; writes no row."""

from __future__ import annotations

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW
from moonpool.master.copies import only_hinted
from moonpool.master.entries import check_rank
from moonpool.master.lookups import check_run
from moonpool.master.promises import Promises, Rank
from moonpool.master.step import Step
from moonpool.master.table import Table
from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.messages import PutAnswer, PutItem
from moonpool.schemas.packed import count_of, split_hashes
from moonpool.schemas.runs import STRIDE, run_start

PROMISE_MS_MAX = 60_000


def start_item(
    table: Table, item: PutItem, promises: Promises, promise_ms: int, step: Step
) -> tuple[bytes, int | None]:
    """One answer a block, and the segment that those with GO are to be written to."""
    hashes = split_hashes(item.hashes, table.spec.hash_bytes)
    if not _hangs(table, item, promises, step.now_s):
        return bytes([PutAnswer.NO_PARENT]) * len(hashes), None
    promises.expire(step.now_s, 2 * len(hashes))  # so many more than are given that they never pile up
    rows = table.rows.find(item.hashes, table.spec.hash_bytes)
    of = Rank(item.keyspace, item.rank)
    until_s = step.now_s + promise_ms / 1000
    # The usual case at once: nobody has any of them, or is about to, and no quota is to be kept.
    if (
        step.spend is None
        and hashes
        and rows.max() == NO_ROW
        and len(set(hashes)) == len(hashes) <= promises.room()
        and not promises.any_held(of, hashes)
        and (place := step.place_put(item.size_bytes)) is not None
    ):
        promises.give(of, hashes, until_s, place, item.size_bytes)
        return bytes(len(hashes)), place
    answers = bytearray(len(hashes))
    granted: dict[bytes, None] = {}
    segment: int | None = None
    for index, row in enumerate(rows.tolist()):
        block_hash = hashes[index]
        there = row != NO_ROW and table.committed[row] >> item.rank & 1
        if there and not (table.hinted and _only_hinted(table, row, item.rank)):
            # While a copy is being checked nobody knows whether another one is wanted.
            answers[index] = PutAnswer.EXISTS if table.sound(row, item.rank) else PutAnswer.BUSY
            continue
        held = block_hash in granted or promises.held(of, block_hash, step.now_s)
        if held or len(granted) >= promises.room():
            answers[index] = PutAnswer.BUSY
            continue
        if segment is None:
            segment = step.place_put(item.size_bytes)
        if segment is None:
            answers[index] = PutAnswer.NO_NODE
            continue
        if step.spend is not None and not step.spend(table.spec.tenant, item.size_bytes):
            answers[index] = PutAnswer.QUOTA
            continue
        answers[index] = PutAnswer.GO
        granted[block_hash] = None
    if granted and segment is not None:
        promises.give(of, list(granted), until_s, segment, item.size_bytes)
    return bytes(answers), segment if granted else None


def _only_hinted(table: Table, row: int, rank: int) -> bool:
    cell = row * table.world + rank
    return all(only_hinted(table, cell, segment) for segment in table.layers.segments(cell))


def _hangs(table: Table, item: PutItem, promises: Promises, now_s: float) -> bool:
    """Whether the first block's parent is there or on its way. The others follow blocks of this very item."""
    if not isinstance(table, ChainedTable) or run_start(item.position) == item.position:
        return True
    return promises.held(Rank(item.keyspace, item.rank), item.parent, now_s) or table.may_hang_on(
        item.parent, item.position, item.rank, now_s
    )


def check_item(table: Table, item: PutItem, promise_ms: int) -> None:
    """Raises InvalidParams where an item can't be answered."""
    check_rank(item.rank, table.spec)
    count = count_of(item.hashes, table.spec.hash_bytes, "hashes")
    if item.size_bytes < 1:
        raise InvalidParams(field="size_bytes", value=item.size_bytes, allowed="1 or more")
    if not 1 <= promise_ms <= PROMISE_MS_MAX:
        raise InvalidParams(field="promise_ms", value=promise_ms, allowed=f"1 to {PROMISE_MS_MAX}")
    if not isinstance(table, ChainedTable):
        if count > STRIDE:
            raise InvalidParams(field="hashes", value=f"{count} blocks", allowed=f"{STRIDE} an item")
        return
    check_run(item.position, count)
    if item.position and len(item.parent) != table.spec.hash_bytes:
        raise InvalidParams(
            field="parent", value=item.parent.hex(), allowed="the hash before the first block's"
        )
