"""Reports of new objects take a short way into the index: it must lead where the other one does."""

from __future__ import annotations

import pytest
from support.paper_cluster import Block, PaperCluster, chain, flat_spec

from moonpool.master.flat import FlatTable
from moonpool.master.reports import check_op
from moonpool.master.shard import Shard
from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.keyspace import KeyspaceSpec, objects_keyspace
from moonpool.schemas.messages import Done, Entries, Presence, Present, PutItem, PutStart, Report
from moonpool.schemas.packed import join_hashes, pack_u16, pack_u32, pack_u64

NAMES = chain(80)
SPECS = [objects_keyspace(), flat_spec()]


def pool(spec: KeyspaceSpec) -> PaperCluster:
    cluster = PaperCluster(spec)
    cluster.join("a")
    cluster.heartbeat("a")
    return cluster


def report(cluster: PaperCluster, *block_hashes: bytes) -> object:
    segment = cluster.segments["a"]
    committed = [(0, Block(one), segment.fill(0, Block(one))) for one in block_hashes]
    message = Report(segment.info.segment, segment.stream, segment.sequence, [cluster.entries(committed)])
    outcome = cluster.core.handle(message, cluster.now_s, cluster.origin())
    segment.sequence += 1
    cluster.deliver(outcome.pushes)
    return outcome.reply


def seen(cluster: PaperCluster) -> list[object]:
    """All that the core says of them."""
    table = cluster.core.shards.get(0).tables[cluster.keyspace]
    rows = [table.rows.get(one) for one in NAMES]
    known = [None if row < 0 else (table.place(row, 0), table.ready[row], table.uses[row]) for row in rows]
    queued = sorted(table.hashes[row] for queue in table.candidates.queues.values() for row in queue.rows())
    return [known, table.copies, table.used_bytes, queued, cluster.core.status(cluster.now_s)]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("count", [1, 3, 17])
def test_the_short_way_leads_where_the_long_one_does(
    spec: KeyspaceSpec, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = pool(spec), pool(spec)
    took: list[int | None] = []
    adopt = Shard.adopt

    def noted(self: Shard, segment: int, op: Entries, now_s: float) -> int | None:
        took.append(adopt(self, segment, op, now_s))
        return took[-1]

    for cluster, way in ((short, noted), (long, lambda *_: None)):
        with monkeypatch.context() as patch:
            patch.setattr(Shard, "adopt", way)
            if cluster is long:
                patch.setattr(FlatTable, "adopt", lambda *_: False)
            items = [PutItem(cluster.keyspace, 0, 0, b"", join_hashes(NAMES[: 2 * count]), 4096)]
            cluster.ask(PutStart(items))
            for first in range(0, 4 * count, count):  # the first two promised, the others not
                assert report(cluster, *NAMES[first : first + count]) == Done(1)
            cluster.core.validate()
    assert took == [4096 * count] * 4
    assert seen(short) == seen(long)
    present = short.ask(Presence(short.keyspace, join_hashes(NAMES[: 4 * count])))
    assert present == Present(b"\1" * 4 * count)


@pytest.mark.parametrize("spec", SPECS)
def test_what_is_not_new_goes_the_long_way(spec: KeyspaceSpec) -> None:
    cluster = pool(spec)
    report(cluster, NAMES[0])
    assert type(report(cluster, NAMES[1], NAMES[0])).__name__ == "Refused"
    assert type(report(cluster, NAMES[2], NAMES[2])).__name__ == "Refused"
    assert len(cluster.segments["a"].held) == 3
    cluster.core.validate()


@pytest.mark.parametrize("field", ["ranks", "hashes", "slots", "generations", "lengths"])
def test_columns_of_another_length_are_refused(field: str) -> None:
    cluster = pool(objects_keyspace())
    columns = {
        "ranks": pack_u16([0]),
        "positions": pack_u32([0]),
        "hashes": NAMES[0],
        "parents": bytes(16),
        "slots": pack_u32([1]),
        "generations": pack_u64([5]),
        "lengths": pack_u64([100]),
    }
    table_of = cluster.core.shards.get(0).table
    check_op(table_of, Entries(cluster.keyspace, **columns))
    for bad in (b"", columns[field] * 2, columns[field] + b"\0"):
        with pytest.raises(InvalidParams):
            check_op(table_of, Entries(cluster.keyspace, **{**columns, field: bad}))
    with pytest.raises(InvalidParams):
        check_op(table_of, Entries(cluster.keyspace, **{**columns, "ranks": pack_u16([1])}))
