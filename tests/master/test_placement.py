"""Which node a put goes to: room first, and of full nodes each in its turn."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec import structs
from support.node_info import node_info
from support.paper_cluster import BLOCK_BYTES, Block, PaperCluster, chain, flat_spec

from moonpool.master.node import SHUNS_MAX, Node
from moonpool.master.placement import choose
from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.messages import Heartbeat, NodeState, PutAbandon, PutItem, PutStart, PutStarted

BLOCKS = 200
"""A small node's memory."""


def node(index: int, free_bytes: int, *, turned: float = 0.0, **facts: float) -> Node:
    info = node_info(f"n{index}", segment=bytes([index]), capacity_bytes=1000, page_bytes=10)
    return Node(info, index, NodeState.LIVE, 0.0, free_bytes=free_bytes, rewritten=turned, facts=facts)


def test_room_goes_first_and_choices_are_deterministic() -> None:
    nodes = [node(i, 500) for i in range(3)]
    assert choose(nodes, 10, {}, "", 0.0) is nodes[2]
    assert choose(nodes, 10, {2: 1}, "", 0.0) is nodes[1]
    assert choose(nodes, 11, {}, "", 0.0) is None
    assert choose([], 1, {}, "", 0.0) is None
    roomy = node(3, 501, rewritten=9.0)
    assert choose([*nodes, roomy], 1, {}, "", 0.0) is roomy, "nothing need be evicted there"


def test_of_full_nodes_the_one_that_was_put_to_least() -> None:
    tired, fresh = node(0, 160, rewritten=2.0), node(1, 90, rewritten=1.5)
    assert choose([tired, fresh], 1, {}, "", 0.0) is fresh
    assert choose([tired, fresh], 1, {1: 501}, "", 0.0) is tired, "what is promised counts as put"
    assert choose([tired, node(2, 163, rewritten=3.0)], 1, {}, "", 0.0).index == 2  # type: ignore[union-attr]


def test_a_node_is_full_by_its_own_watermark() -> None:
    full = node(0, 250, rewritten=2.0, low_watermark_bytes=800)
    assert choose([full, node(1, 200, rewritten=1.0, low_watermark_bytes=800)], 1, {}, "", 0.0).index == 1  # type: ignore[union-attr]
    assert choose([full, node(1, 270, rewritten=9.0, low_watermark_bytes=800)], 1, {}, "", 0.0).index == 1  # type: ignore[union-attr]


class Pool:
    """Nodes of so many blocks each, which evict between 95 and 90 %, and writers on other hosts."""

    def __init__(self, **sizes: int) -> None:
        self.cluster = PaperCluster(flat_spec())
        self.sizes: dict[str, int] = {}
        for name, blocks in sizes.items():
            self.join(name, blocks)
        self.hashes = iter(chain(100_000))

    def join(self, name: str, blocks: int) -> None:
        self.sizes[name] = blocks
        segment = self.cluster.join(name)
        segment.info = structs.replace(
            segment.info, capacity_bytes=blocks * BLOCK_BYTES, page_bytes=BLOCK_BYTES
        )
        self.cluster.join(name)
        self.beat(name)

    def free_blocks(self, name: str) -> int:
        return self.sizes[name] - len(self.cluster.segments[name].held)

    def beat(self, name: str) -> None:
        cluster = self.cluster
        told = Heartbeat(cluster.segments[name].info.segment, 7, self.free_blocks(name) * BLOCK_BYTES)
        cluster.core.handle(told, cluster.now_s, cluster.origin())

    def put(self, count: int, *, here: str = "") -> Counter[str]:
        """So many new blocks one after the other. Returns how many went to each node."""
        cluster, where = self.cluster, Counter[str]()
        by_id = {segment.info.segment: name for name, segment in cluster.segments.items()}
        for block_hash in [next(self.hashes) for _ in range(count)]:
            cluster.now_s += 0.01
            started = cluster.ask(
                PutStart([PutItem(cluster.keyspace, 0, 0, b"", block_hash, BLOCK_BYTES)]),
                cluster.segments[here].info.host if here else "elsewhere",
            )
            assert isinstance(started, PutStarted)
            name = by_id[started.segments[0]]
            where[name] += 1
            cluster.commit(name, [Block(block_hash)])
            if self.free_blocks(name) < self.sizes[name] // 20:
                cluster.need(name, self.sizes[name] // 10 - self.free_blocks(name))
        cluster.core.validate()
        return where


@pytest.mark.parametrize("heartbeats", [False, True])
def test_full_nodes_take_puts_by_their_sizes(heartbeats: bool) -> None:
    pool = Pool(a=BLOCKS, b=BLOCKS, c=2 * BLOCKS)
    pool.put(4 * BLOCKS)
    total: Counter[str] = Counter()
    for _ in range(12):
        total += pool.put(BLOCKS)
        for name in pool.sizes if heartbeats else ():
            pool.beat(name)
    assert total["a"] == pytest.approx(3 * BLOCKS, rel=0.1)
    assert total["b"] == pytest.approx(3 * BLOCKS, rel=0.1)
    assert total["c"] == pytest.approx(6 * BLOCKS, rel=0.1)


def test_a_node_that_comes_later_is_filled_and_then_waits_for_its_turn() -> None:
    pool = Pool(a=BLOCKS, b=BLOCKS)
    pool.put(10 * BLOCKS)
    pool.join("c", BLOCKS)
    assert pool.put(BLOCKS // 2)["c"] == BLOCKS // 2
    pool.put(3 * BLOCKS)  # the others' memory is older than what filled it, until it was written anew
    last = pool.put(3 * BLOCKS)
    assert min(last.values()) > 0.8 * BLOCKS and len(last) == 3


def test_a_node_that_was_written_by_its_own_host_is_written_by_others_again_soon() -> None:
    pool = Pool(a=BLOCKS, b=BLOCKS)
    pool.put(2 * BLOCKS)
    assert pool.put(20 * BLOCKS, here="a")["a"] == 20 * BLOCKS
    assert pool.put(BLOCKS)["b"] >= 0.9 * BLOCKS, "what lies there is older"
    pool.put(BLOCKS)
    last = pool.put(2 * BLOCKS)
    assert min(last["a"], last["b"]) > 0.8 * BLOCKS


def test_an_inventory_is_not_put_anew() -> None:
    pool = Pool(a=BLOCKS, b=BLOCKS)
    pool.put(4 * BLOCKS)
    for _ in range(2):
        pool.cluster.disconnect("b")
        pool.cluster.join("b")
        pool.beat("b")
        where = pool.put(BLOCKS // 4)
        assert min(where["a"], where["b"]) > BLOCKS // 10


class Failing(Pool):
    """Puts on these nodes fail."""

    def __init__(self, failing: set[str], **sizes: int) -> None:
        super().__init__(**sizes)
        self.failing = failing

    def where(self, seconds: int, *, host: str = "elsewhere") -> Counter[str]:
        """Puts ten times a second."""
        cluster, where = self.cluster, Counter[str]()
        by_id = {segment.info.segment: name for name, segment in cluster.segments.items()}
        for _ in range(10 * seconds):
            cluster.now_s += 0.1
            block_hash = next(self.hashes)
            started = cluster.ask(
                PutStart([PutItem(cluster.keyspace, 0, 0, b"", block_hash, BLOCK_BYTES)]), host
            )
            assert isinstance(started, PutStarted)
            name = by_id[started.segments[0]]
            where[name] += 1
            if name in self.failing:
                cluster.ask(PutAbandon(cluster.keyspace, 0, block_hash), host)
            else:
                cluster.commit(name, [Block(block_hash)])
        cluster.core.validate()
        return where

    def beats(self) -> None:
        for name in self.sizes:
            self.cluster.heartbeat(name)


@pytest.mark.parametrize("host", ["elsewhere", "host-a"])
def test_a_node_where_puts_fail_is_tried_more_and_more_seldom(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Failing({"a"}, a=1000 * BLOCKS, b=500 * BLOCKS)
    assert pool.where(1, host=host)["b"] == 9, "although there is more room, or it is the writer's own"
    assert pool.where(30, host=host)["a"] == 4
    assert [record.getMessage() for record in caplog.records] == [f"puts from {host} to node a go on failing"]
    pool.beats()
    assert pool.where(60, host=host)["a"] in (1, 2, 3)


def test_each_host_finds_out_for_itself() -> None:
    pool = Failing({"a"}, a=1000 * BLOCKS, b=500 * BLOCKS)
    pool.where(4)
    pool.failing.clear()
    assert pool.where(2, host="another")["a"] == 20, "which reaches it"
    pool.failing.add("a")
    assert pool.where(20)["a"] < 5, "whatever others say"


def test_a_failure_long_after_the_last_one_is_a_first_one() -> None:
    pool = Failing({"a"}, a=1000 * BLOCKS, b=500 * BLOCKS)
    pool.where(4)
    pool.failing.clear()
    pool.where(20)
    pool.failing.add("a")
    assert pool.where(1)["a"] == 1
    pool.failing.clear()
    assert pool.where(2)["a"] >= 18


def test_where_all_fail_alike_the_own_host_is_asked_first_and_one_alone_always() -> None:
    pool = Failing({"a", "b"}, a=BLOCKS, b=1000 * BLOCKS)
    pool.where(10, host="host-a")
    assert pool.where(1, host="host-a")["a"] >= 9
    alone = Failing({"a"}, a=BLOCKS)
    assert alone.where(3)["a"] == 30


def test_hosts_that_are_remembered_are_bounded() -> None:
    pool = Failing({"a"}, a=BLOCKS)
    for number in range(2 * SHUNS_MAX):
        pool.where(1, host=f"h{number}")
    assert len(pool.cluster.core._nodes.all()[0].shuns) == SHUNS_MAX
    pool.cluster.join("a")
    assert not pool.cluster.core._nodes.all()[0].shuns, "started again, it may have other doors"


def test_no_report_makes_a_node_the_last_one_for_ever() -> None:
    pool = Pool(a=BLOCKS, b=BLOCKS)
    pool.put(4 * BLOCKS)
    nodes = pool.cluster.core._nodes
    node = next(one for one in nodes.all() if one.info.node == "a")
    nodes.stored(node, 1 << 64)
    pool.put(2 * BLOCKS)
    assert min(pool.put(BLOCKS).values()) > BLOCKS // 3


def test_facts_that_are_no_numbers_are_refused() -> None:
    pool = Pool(a=BLOCKS)
    cluster = pool.cluster
    for value in (float("nan"), float("inf")):
        told = Heartbeat(cluster.segments["a"].info.segment, 7, 0, {"low_watermark_bytes": value})
        with pytest.raises(InvalidParams, match="low_watermark_bytes"):
            cluster.core.handle(told, cluster.now_s, cluster.origin())
    assert pool.put(1)["a"] == 1
