"""I1: what is ready, and when it stops being so."""

from __future__ import annotations

import random

import pytest
from support.paper_cluster import Block, PaperCluster, blocks_of, chain, chained_spec, flat_spec

from moonpool.master.chained import SETTLE_ROWS_MAX
from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown
from moonpool.schemas.messages import (
    Checked,
    Describe,
    Description,
    Done,
    Entries,
    Locate,
    Located,
    Match,
    Matched,
    Moved,
    Presence,
    Present,
    Renew,
    Report,
    ReportBad,
    RunSlice,
)
from moonpool.schemas.packed import join_hashes, pack_u16, pack_u32, pack_u64, u16s, u32s, u64s
from moonpool.schemas.runs import split_runs

CHAIN = chain(600)


def match(cluster: PaperCluster, hashes: list[bytes], lease_ms: int = 0) -> list[int]:
    runs = [
        (first, join_hashes(hashes[first : first + count])) for first, count in split_runs(0, len(hashes))
    ]
    reply = cluster.ask(Match(cluster.keyspace, runs, lease_ms))
    assert isinstance(reply, Matched)
    return reply.ready


def made(world: int = 1, *names: str) -> PaperCluster:
    cluster = PaperCluster(chained_spec(world))
    for name in names or ("a",):
        cluster.join(name)
    return cluster


def test_blocks_in_any_order() -> None:
    cluster = made(2, "a", "b")
    work = [(rank, block) for rank in range(2) for block in blocks_of(CHAIN[:40])]
    random.Random(7).shuffle(work)
    done: set[tuple[int, bytes]] = set()
    for rank, block in work:
        cluster.commit("ab"[rank], [block], [rank])
        done.add((rank, block.block_hash))
        whole = [all((r, h) in done for r in range(2)) for h in CHAIN[:40]]
        assert match(cluster, CHAIN[:40]) == [whole.index(False) if False in whole else 40]
    cluster.core.validate()


def test_runs_are_answered_apart() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN))
    assert match(cluster, CHAIN) == [64, 448, 88]
    segment = cluster.segments["a"]
    key = (0, CHAIN[70])
    cluster.report("a", cluster.freed(key, segment.held.pop(key)[0]))
    assert match(cluster, CHAIN) == [64, 6, 88], "a later run doesn't know of the hole before it"


def test_a_match_from_the_middle_of_a_run() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:30]))
    reply = cluster.ask(Match(cluster.keyspace, [(20, join_hashes(CHAIN[20:40]))]))
    assert reply == Matched([10])


def test_what_hangs_on_nothing_is_not_ready() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:20], 10))
    assert match(cluster, CHAIN[:20]) == [0]
    assert cluster.core.status(0)["rows"] == 11, "ten blocks and a placeholder"
    cluster.commit("a", blocks_of(CHAIN[:10]))
    assert match(cluster, CHAIN[:20]) == [20]
    cluster.core.validate()


def test_a_placeholder_leaves_with_the_last_that_hung_on_it() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:6], 5))
    segment = cluster.segments["a"]
    key = (0, CHAIN[5])
    cluster.report("a", cluster.freed(key, segment.held.pop(key)[0]))
    assert cluster.core.status(0)["rows"] == 0


def test_a_hole_unreadies_what_follows_and_mends() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:20]))
    segment = cluster.segments["a"]
    key = (0, CHAIN[4])
    cluster.report("a", cluster.freed(key, segment.held.pop(key)[0]))
    assert match(cluster, CHAIN[:20]) == [4]
    assert cluster.ask(Renew(cluster.keyspace, CHAIN[19])).bits == b"\0"  # type: ignore[attr-defined]
    cluster.commit("a", [blocks_of(CHAIN[:5])[4]])
    assert match(cluster, CHAIN[:20]) == [20]


def test_becoming_ready_may_lag_for_very_many_rows() -> None:
    cluster = made()
    root = CHAIN[0]
    count = SETTLE_ROWS_MAX + 100
    leaves = [(b"%d" % i).ljust(16, b".") for i in range(count)]
    trees = [Block(leaf, 1, root) for leaf in leaves]
    below = [Block(leaf[::-1], 2, leaf) for leaf in leaves]
    cluster.commit("a", trees)
    cluster.commit("a", below)
    cluster.commit("a", [Block(root)])
    cluster.core.validate()
    cluster.advance(5)
    cluster.core.validate()
    ready = [match(cluster, [root, leaf, leaf[::-1]]) for leaf in leaves]
    assert ready == [[3]] * count


def test_a_bad_report_counts_before_it_is_answered() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:20]))
    segment = cluster.segments["a"]
    slot, generation = segment.held[0, CHAIN[7]][0]
    report = ReportBad(cluster.keyspace, 0, CHAIN[7], segment.info.segment, slot, generation)
    assert cluster.ask(report) == Done(1)
    assert match(cluster, CHAIN[:20]) == [7]
    assert cluster.ask(report) == Done(0), "a check is under way"
    assert segment.checks[0].slot == slot
    cluster.report("a", Checked(cluster.keyspace, 0, CHAIN[7], slot, generation, True))
    assert match(cluster, CHAIN[:20]) == [20]
    assert cluster.ask(report) == Done(0), "it was found good a moment ago"
    cluster.advance(11)
    assert cluster.ask(report) == Done(1)
    cluster.report("a", Checked(cluster.keyspace, 0, CHAIN[7], slot, generation, False))
    assert match(cluster, CHAIN[:20]) == [7]
    assert (0, CHAIN[7]) not in segment.held


def test_a_check_that_nobody_answers_ends_with_a_drop() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:3]))
    segment = cluster.segments["a"]
    slot = segment.held[0, CHAIN[1]][0]
    cluster.ask(ReportBad(cluster.keyspace, 0, CHAIN[1], segment.info.segment, *slot))
    cluster.advance(31)
    assert (0, CHAIN[1]) not in segment.held
    cluster.core.validate()


def test_bad_reports_are_bounded() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN))
    segment = cluster.segments["a"]
    believed = 0
    for block_hash in reversed(CHAIN):
        slot = segment.held[0, block_hash][0]
        reply = cluster.ask(ReportBad(cluster.keyspace, 0, block_hash, segment.info.segment, *slot))
        assert isinstance(reply, Done)
        believed += reply.count
    assert believed == 64


def test_locate_and_moves() -> None:
    cluster = made(2, "a", "b")
    cluster.commit("a", blocks_of(CHAIN[:40]), [0])
    cluster.commit("b", blocks_of(CHAIN[:40]), [1])
    reply = cluster.ask(Locate(cluster.keyspace, 1, [RunSlice(CHAIN[29], 10, 20), RunSlice(CHAIN[9], 5, 6)]))
    assert isinstance(reply, Located)
    held = cluster.segments["b"].held
    assert u32s(reply.slots)[:20].tolist() == [held[1, h][0][0] for h in CHAIN[10:30]]
    assert not u64s(reply.generations)[20:].any(), "the slice names another position"
    assert set(u64s(reply.lengths)[:20].tolist()) == {4096}
    assert reply.segments == [cluster.segments["b"].info.segment]
    slot = held[1, CHAIN[10]][0]
    one = (pack_u16([1]), CHAIN[10], pack_u32([slot[0]]), pack_u64([slot[1]]))
    cluster.report("b", Moved(cluster.keyspace, *one, pack_u32([777]), pack_u64([888])))
    reply = cluster.ask(Locate(cluster.keyspace, 1, [RunSlice(CHAIN[10], 10, 1)]))
    assert isinstance(reply, Located)
    assert (u32s(reply.slots)[0], u64s(reply.generations)[0]) == (777, 888)


def test_locate_over_several_segments() -> None:
    cluster = made(1, "a", "b")
    cluster.commit("a", blocks_of(CHAIN[:4]))
    cluster.commit("b", blocks_of(CHAIN[:8], 4))
    reply = cluster.ask(Locate(cluster.keyspace, 0, [RunSlice(CHAIN[7], 0, 8)]))
    assert isinstance(reply, Located)
    where = [reply.segments[which] for which in u16s(reply.which)]
    assert where == [cluster.segments[name].info.segment for name in "aaaabbbb"]
    cluster.disconnect("b")
    reply = cluster.ask(Locate(cluster.keyspace, 0, [RunSlice(CHAIN[7], 0, 8)]))
    assert isinstance(reply, Located)
    assert not any(reply.generations), "part of the run is out of reach: match again"


def test_flat_rows_stand_alone() -> None:
    cluster = PaperCluster(flat_spec(2))
    cluster.join("a")
    cluster.commit("a", [Block(h) for h in CHAIN[:2]], [0])
    cluster.commit("a", [Block(CHAIN[1])], [1])

    def present(rank: int) -> bytes:
        reply = cluster.ask(Presence(cluster.keyspace, join_hashes(CHAIN[:3]), rank))
        assert isinstance(reply, Present)
        return reply.bits

    assert present(-1) == b"\0\1\0"
    assert present(0) == b"\1\1\0"
    reply = cluster.ask(Locate(cluster.keyspace, 1, hashes=join_hashes(CHAIN[:3])))
    assert isinstance(reply, Located)
    assert [g > 0 for g in u64s(reply.generations)] == [False, True, False]
    with pytest.raises(InvalidParams):
        cluster.ask(Match(cluster.keyspace, [(0, CHAIN[0])]))


def test_entries_that_contradict_are_dropped_by_their_node() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:5]))
    cluster.commit(
        "a", [Block(b"x" * 16, 2, CHAIN[4]), Block(b"y" * 16, 9, b"y" * 16), Block(CHAIN[2], 3, CHAIN[1])]
    )
    held = cluster.segments["a"].held
    assert sorted(held) == sorted((0, h) for h in CHAIN[:5])
    cluster.core.validate()


def test_a_bad_op_changes_nothing() -> None:
    cluster = made()
    segment = cluster.segments["a"]
    good = cluster.entries([(0, Block(CHAIN[0]), (1, 1))])
    fields = {name: getattr(good, name) for name in good.__struct_fields__}
    bad = [
        (InvalidParams, Entries(**fields | {"ranks": pack_u16([1])})),
        (InvalidParams, Entries(**fields | {"slots": b""})),
        (InvalidParams, Entries(**fields | {"hashes": b"short"})),
        (KeyspaceUnknown, Entries(**fields | {"keyspace": bytes(16)})),
    ]
    for error, op in bad:
        with pytest.raises(error):
            cluster.ask(Report(segment.info.segment, segment.stream, segment.sequence, [good, op]))
    assert cluster.core.status(0)["rows"] == 0
    cluster.report("a", good)
    assert cluster.core.status(0)["rows"] == 1


def test_describe() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:5]))
    match(cluster, CHAIN[:3], 5000)
    cluster.now_s += 2
    reply = cluster.ask(Describe(cluster.keyspace, CHAIN[2]))
    assert isinstance(reply, Description)
    assert (reply.ready, reply.position, reply.parent, reply.children) == (True, 2, CHAIN[1], 1)
    assert (reply.lease_ms, reply.age_ms, reply.pinned) == (3000, 2000, False)
    assert reply.copies[0].segment == cluster.segments["a"].info.segment


@pytest.mark.parametrize("position", [0, 100])
def test_a_run_slice_stays_in_its_run(position: int) -> None:
    cluster = made()
    with pytest.raises(InvalidParams):
        cluster.ask(Match(cluster.keyspace, [(position, join_hashes(CHAIN))]))
