"""Copies that were on their way while their block left, or was put anew; and a full pool of copies."""

from __future__ import annotations

import pytest
from support.paper_cluster import BLOCK_BYTES, Block, PaperCluster, blocks_of, chain, chained_spec, flat_spec

from moonpool.master.copies import Place
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Match, Matched, Remove, SetReplicas
from moonpool.schemas.packed import join_hashes

HASHES = chain(5)


class Pair:
    """Blocks on node a, two copies of each wanted: node b has made some and not reported them."""

    def __init__(self, spec: KeyspaceSpec, blocks: list[Block]) -> None:
        self.cluster = PaperCluster(spec)
        self.cluster.join("a")
        self.cluster.join("b")
        self.cluster.commit("a", blocks)
        self.cluster.ask(SetReplicas(self.cluster.keyspace, 2))
        while not self.cluster.segments["b"].orders:
            self.cluster.advance(1)
        assert self.cluster.carry_out("b") == len(blocks)

    def report(self) -> None:
        self.cluster.report("a")
        self.cluster.report("b")
        self.cluster.core.validate()

    def settle(self) -> None:
        for _ in range(10):
            self.cluster.advance(1)
            self.cluster.carry_out("b")
            self.report()

    def places(self, block_hash: bytes) -> list[Place]:
        table = self.cluster.core._shards.get(0).table(self.cluster.keyspace)
        row = table.rows.get(block_hash)
        return table.places(row, 0) if row >= 0 and table.committed[row] else []

    def held(self, name: str) -> set[bytes]:
        return {block_hash for _, block_hash in self.cluster.segments[name].held}


def test_copies_on_their_way_are_taken_in() -> None:
    pair = Pair(chained_spec(), blocks_of(HASHES))
    pair.report()
    assert [len(pair.places(one)) for one in HASHES] == [2] * 5


def test_what_hung_on_a_removed_block_does_not_come_back() -> None:
    pair = Pair(chained_spec(), blocks_of(HASHES))
    outcome = pair.cluster.outcome(Remove(pair.cluster.keyspace, HASHES[0], True))
    pair.report()
    assert set(outcome.awaits) <= set(pair.cluster.confirmed), "it is acknowledged"
    assert [pair.places(one) for one in HASHES] == [[]] * 5
    pair.cluster.commit("a", blocks_of(HASHES)[:1])
    ready = pair.cluster.ask(Match(pair.cluster.keyspace, [(0, join_hashes(HASHES))]))
    assert isinstance(ready, Matched) and ready.ready == [1]
    pair.settle()
    assert pair.held("b") == {HASHES[0]}, "the others' slots are free again, and the new one is copied"


def test_a_block_that_was_put_anew_keeps_no_copy_of_the_old_bytes() -> None:
    block = Block(HASHES[0])
    pair = Pair(flat_spec(), [block])
    (old,) = pair.places(block.block_hash)
    pair.cluster.advance(30)
    assert pair.cluster.need("a", 1).freed_bytes == BLOCK_BYTES
    pair.cluster.report("a")
    pair.cluster.commit("a", [block])
    pair.cluster.report("b")
    (new,) = pair.places(block.block_hash)
    assert new.segment == old.segment and new.generation > old.generation
    pair.settle()
    assert len(pair.places(block.block_hash)) == 2, "of what is there now"


def test_one_rank_that_was_removed_does_not_come_back() -> None:
    pair = Pair(flat_spec(), [Block(HASHES[0])])
    pair.cluster.outcome(Remove(pair.cluster.keyspace, HASHES[0], True, rank=0))
    pair.report()
    assert pair.places(HASHES[0]) == []
    pair.settle()
    assert pair.held("b") == set()


@pytest.mark.parametrize("spec", [flat_spec(), chained_spec()])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_full_pool_makes_room_however_many_copies_there_are(spec: KeyspaceSpec, copies: int) -> None:
    cluster = PaperCluster(spec)
    for name in "ab":
        cluster.join(name)
    cluster.commit("a", blocks_of(chain(40)))
    cluster.ask(SetReplicas(cluster.keyspace, copies))
    for _ in range(20):
        cluster.advance(1)
        for name in "ab":
            cluster.carry_out(name)
            cluster.report(name)
    assert len(cluster.segments["b"].held) == (40 if copies == 2 else 0)
    cluster.advance(200)
    for _ in range(4):
        assert cluster.need("a", 10).freed_bytes == 10 * BLOCK_BYTES
    cluster.core.validate()
