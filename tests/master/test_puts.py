"""put_start: answers, promises, and where puts go."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.paper_cluster import BLOCK_BYTES, Block, PaperCluster, blocks_of, chain, chained_spec, flat_spec

from moonpool.master.nodes import CANDIDATES_MAX
from moonpool.master.pins import Pins
from moonpool.master.promises import Promises, Rank
from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown
from moonpool.schemas.messages import (
    Heartbeat,
    PutAbandon,
    PutAnswer,
    PutItem,
    PutStart,
    PutStarted,
    ReportBad,
)
from moonpool.schemas.packed import join_hashes
from moonpool.schemas.runs import split_runs

CHAIN = chain(600)
GO, EXISTS, BUSY, NO_PARENT, NO_NODE, _ = PutAnswer


def made(*names: str, world: int = 1) -> PaperCluster:
    cluster = PaperCluster(chained_spec(world))
    for name in names:
        cluster.join(name)
        cluster.heartbeat(name)
    return cluster


def item(
    cluster: PaperCluster, first: int, end: int, rank: int = 0, size_bytes: int = BLOCK_BYTES
) -> PutItem:
    parent = CHAIN[first - 1] if first else b""
    return PutItem(cluster.keyspace, rank, first, parent, join_hashes(CHAIN[first:end]), size_bytes)


def start(cluster: PaperCluster, *items: PutItem, host: str = "") -> PutStarted:
    reply = cluster.ask(PutStart(list(items)), host)
    assert isinstance(reply, PutStarted)
    return reply


def answers(cluster: PaperCluster, *items: PutItem) -> list[list[PutAnswer]]:
    return [[PutAnswer(answer) for answer in part] for part in start(cluster, *items).answers]


def test_a_whole_chain_in_one_call() -> None:
    cluster = made("a")
    items = [item(cluster, first, first + count) for first, count in split_runs(0, 600)]
    items.insert(1, item(cluster, 64, 64))
    assert answers(cluster, *items) == [[GO] * 64, [], [GO] * 448, [GO] * 88]
    pieces = made("a")
    assert answers(pieces, item(pieces, 0, 5), item(pieces, 5, 9), item(pieces, 9, 20)) == [
        [GO] * 5,
        [GO] * 4,
        [GO] * 11,
    ]


def test_no_parent() -> None:
    cluster = made("a")
    assert answers(cluster, item(cluster, 5, 9)) == [[NO_PARENT] * 4]
    assert answers(cluster, item(cluster, 64, 66)) == [[GO] * 2], "parents are looked for inside a run only"
    cluster.commit("a", blocks_of(CHAIN[:5]))
    assert answers(cluster, item(cluster, 5, 9)) == [[GO] * 4]


def test_a_parent_of_another_rank_is_none() -> None:
    cluster = made("a", world=2)
    cluster.commit("a", blocks_of(CHAIN[:5]), [0])
    assert answers(cluster, item(cluster, 5, 6, rank=1)) == [[NO_PARENT]]
    assert answers(cluster, item(cluster, 0, 6, rank=1)) == [[GO] * 6]


def test_a_parent_that_hangs_on_nothing_for_long_is_none() -> None:
    cluster = made("a")
    cluster.commit("a", blocks_of(CHAIN[:6], 3))
    assert answers(cluster, item(cluster, 6, 7)) == [[GO]], "what is missing may be on its way"
    cluster.advance(61)
    assert answers(cluster, item(cluster, 6, 7)) == [[NO_PARENT]]
    cluster.commit("a", blocks_of(CHAIN[:3]))
    assert answers(cluster, item(cluster, 6, 7)) == [[GO]]


def test_exists_and_busy() -> None:
    cluster = made("a")
    cluster.commit("a", blocks_of(CHAIN[:2]))
    assert answers(cluster, item(cluster, 0, 4)) == [[EXISTS, EXISTS, GO, GO]]
    assert answers(cluster, item(cluster, 0, 5)) == [[EXISTS, EXISTS, BUSY, BUSY, GO]]
    cluster.ask(PutAbandon(cluster.keyspace, 0, CHAIN[2]))
    assert answers(cluster, item(cluster, 0, 4)) == [[EXISTS, EXISTS, GO, BUSY]]
    cluster.advance(11)
    assert answers(cluster, item(cluster, 2, 4)) == [[GO, GO]]
    cluster.commit("a", blocks_of(CHAIN[:4], 2))
    assert cluster.core.status(0)["promises"] == 0


def test_a_block_under_suspicion_is_busy() -> None:
    cluster = made("a")
    cluster.commit("a", blocks_of(CHAIN[:2]))
    segment = cluster.segments["a"]
    cluster.ask(ReportBad(cluster.keyspace, 0, CHAIN[1], segment.info.segment, *segment.held[0, CHAIN[1]][0]))
    assert answers(cluster, item(cluster, 0, 3)) == [[EXISTS, BUSY, GO]]


def test_the_writers_own_host_comes_first() -> None:
    cluster = made("a", "b", "c")
    cluster.ask(Heartbeat(cluster.segments["b"].info.segment, 7, 0))
    assert start(cluster, item(cluster, 0, 1), host="host-b").segments == [cluster.segments["b"].info.segment]
    cluster.disconnect("b")
    assert start(cluster, item(cluster, 1, 2), host="host-b").segments != [cluster.segments["b"].info.segment]


def test_promised_bytes_spread_the_herd() -> None:
    cluster = made("a", "b", "c")
    where = [start(cluster, item(cluster, i, i + 1), host="elsewhere").segments[0] for i in range(30)]
    assert all(where.count(segment.info.segment) == 10 for segment in cluster.segments.values())


def test_no_node() -> None:
    cluster = made()
    assert answers(cluster_with_spec(cluster), item(cluster, 0, 2)) == [[NO_NODE] * 2]
    cluster.join("a")
    assert answers(cluster, item(cluster, 0, 2, size_bytes=2 << 20)) == [[NO_NODE] * 2], "larger than a page"
    assert answers(cluster, item(cluster, 0, 2)) == [[GO] * 2]
    assert start(cluster, item(cluster, 0, 2)).segments == [b""]


def cluster_with_spec(cluster: PaperCluster) -> PaperCluster:
    cluster.join("gone")
    cluster.disconnect("gone")
    return cluster


def test_flat_blocks_have_no_parent() -> None:
    cluster = PaperCluster(flat_spec())
    cluster.join("a")
    cluster.commit("a", [Block(CHAIN[1])])
    wanted = PutItem(cluster.keyspace, 0, 0, b"", join_hashes([*CHAIN[:3], CHAIN[0]]), BLOCK_BYTES)
    assert answers(cluster, wanted) == [[GO, EXISTS, GO, BUSY]]


def test_bad_items() -> None:
    cluster = made("a")
    good = item(cluster, 0, 1)
    bad = [
        PutItem(cluster.keyspace, 1, 0, b"", CHAIN[0], 1),
        PutItem(cluster.keyspace, 0, 0, b"", CHAIN[0], 0),
        PutItem(cluster.keyspace, 0, 0, b"", CHAIN[0][:-1], 1),
        PutItem(cluster.keyspace, 0, 3, b"", CHAIN[3], 1),
        PutItem(cluster.keyspace, 0, 60, CHAIN[59], join_hashes(CHAIN[60:66]), 1),
        PutItem(cluster.keyspace, 0, -1, b"", CHAIN[0], 1),
    ]
    for wrong in bad:
        with pytest.raises(InvalidParams):
            start(cluster, good, wrong)
    with pytest.raises(KeyspaceUnknown):
        start(cluster, good, PutItem(bytes(16), 0, 0, b"", CHAIN[0], 1))
    assert answers(cluster, good) == [[GO]], "a refused call has promised nothing"


def test_promises_are_bounded() -> None:
    promises, of, hashes = Promises(limit=3), Rank(b"k", 0), CHAIN[:3]
    promises.give(of, hashes, 10.0, 1, 100)
    assert promises.room() == 0
    assert promises.bytes_on == {1: 300}
    promises.expire(9.0, 99)
    assert promises.held(of, hashes[0], 9.0)
    promises.expire(10.2, 2)
    promises.validate()
    assert promises.bytes_on == {1: 100}, "two at a time"
    assert not any(promises.held(of, one, 10.2) for one in hashes)
    promises.expire(10.2, 2)
    assert len(promises) == 0
    promises.validate()


class PromisedBlocks:
    """What Promises should say, block by block: (rank, hash) -> (end, segment, bytes)."""

    def __init__(self) -> None:
        self.promises = Promises(limit=40)
        self.held: dict[tuple[int, bytes], tuple[float, int, int]] = {}
        self.now_s = 0.0

    def give(self, rank: int, hashes: list[bytes], segment: int) -> None:
        of = Rank(b"k", rank)
        free = [one for one in hashes if not self.promises.held(of, one, self.now_s)]
        if len(free) <= self.promises.room():
            self.promises.give(of, free, self.now_s + 1, segment, 10 + rank)
            self.held |= {(rank, one): (self.now_s + 1, segment, 10 + rank) for one in free}

    def end(self, rank: int, hashes: list[bytes]) -> None:
        self.promises.end_all(Rank(b"k", rank), hashes)
        for one in hashes:
            self.held.pop((rank, one), None)

    def check(self) -> None:
        self.promises.validate()
        most: Counter[int] = Counter()  # those that are over may have been ended
        for (rank, one), (until_s, segment, size_bytes) in self.held.items():
            most[segment] += size_bytes
            assert self.promises.held(Rank(b"k", rank), one, self.now_s) == (until_s > self.now_s)
        assert len(self.promises) <= len(self.held) and self.promises.bytes_on <= most


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["give", "end", "wait", "expire"]),
            st.integers(0, 1),
            st.sets(st.integers(0, 11), min_size=1, max_size=6),
        ),
        max_size=40,
    )
)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_promises_are_of_the_blocks_they_were_given_for(steps: list[tuple[str, int, set[int]]]) -> None:
    model = PromisedBlocks()
    for what, rank, numbers in steps:
        hashes = [CHAIN[number] for number in numbers]
        if what == "give":
            model.give(rank, hashes, len(numbers) % 2)
        elif what == "end":
            model.end(rank, hashes)
        elif what == "wait":
            model.now_s += len(numbers) / 8
        else:
            model.promises.expire(model.now_s, len(numbers))
        model.check()
    model.promises.expire(model.now_s + 2, 1000)
    assert len(model.promises) == 0 and not model.promises.bytes_on and not model.promises.bytes_of


def test_promises_whose_time_is_over_make_room_for_new_ones() -> None:
    promises = Promises(limit=1 << 10)
    for second in range(20):
        promises.give(Rank(b"k", second), CHAIN[:100], second + 0.5, 1, 100)
        promises.expire(second + 1.0, 200)
        promises.validate()
        assert len(promises) <= 200


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["pin", "for ever", "unpin", "wait"])), max_size=60)
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_pins_end_in_time_however_often_they_change(steps: list[tuple[int, str]]) -> None:
    pins, model, now_s = Pins(), dict[int, float](), 0.0
    for row, what in steps:
        if what == "unpin":
            assert pins.remove(row) == (model.pop(row, None) is not None)
        elif what == "wait":
            now_s += row
            ended = {row for row, until_s in model.items() if until_s <= now_s}
            assert set(pins.expire(now_s, 99)) == ended
            model = {row: until_s for row, until_s in model.items() if row not in ended}
        else:
            until_s = math.inf if what == "for ever" else now_s + 2
            pins.add(row, until_s)
            model[row] = max(until_s, model.get(row, 0.0))
        assert set(pins.rows()) == set(model)


def test_pins_that_are_renewed_all_the_time_leave_nothing_behind() -> None:
    pins = Pins()
    for second in range(10_000):
        pins.add(second % 7, 1e6 + second)
    assert len(pins._ends) < 200


def test_of_many_nodes_some_are_weighed_and_in_turn_all() -> None:
    names = [f"n{number}" for number in range(CANDIDATES_MAX + 9)]
    cluster = made(*names)
    where = {
        start(cluster, item(cluster, i, i + 1), host="elsewhere").segments[0] for i in range(2 * len(names))
    }
    assert len(where) > len(names) * 2 // 3
    cluster.core.validate()


def test_a_node_that_comes_back_on_another_host_is_local_there() -> None:
    cluster = made("a", "b")
    info = structs.replace(cluster.segments["a"].info, host="host-c")
    cluster.segments["a"].info = info
    cluster.join("a")
    assert start(cluster, item(cluster, 0, 1), host="host-c").segments == [info.segment]
    cluster.core.validate()
