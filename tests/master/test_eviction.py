"""I2: what may be evicted, in which order, and what a node in need is told."""

from __future__ import annotations

import pytest
from support.paper_cluster import (
    BLOCK_BYTES,
    Block,
    PaperCluster,
    blocks_of,
    chain,
    chained_spec,
    dropped,
    flat_spec,
)

from moonpool.schemas.messages import Done, Match, Pin, Presence, Remove, Removed, Renew, Unpin
from moonpool.schemas.packed import join_hashes

CHAIN = chain(40)
OTHER = chain(40, "other")


def made(world: int = 1, *names: str) -> PaperCluster:
    cluster = PaperCluster(chained_spec(world))
    for name in names or ("a",):
        cluster.join(name)
    return cluster


def evicted(cluster: PaperCluster, name: str, blocks: int) -> list[bytes]:
    victims = cluster.need(name, blocks)
    copies = dropped(victims.drops)
    assert victims.freed_bytes == len(copies) * BLOCK_BYTES
    cluster.core.validate()
    return list(dict.fromkeys(block_hash for _, block_hash, _ in copies))


def test_a_run_shrinks_from_its_tail() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN))
    assert evicted(cluster, "a", 5) == CHAIN[:34:-1]


def test_the_least_recently_used_run_goes_first() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:3]))
    cluster.advance(2)
    cluster.commit("a", blocks_of(OTHER[:3]))
    cluster.advance(2)
    cluster.ask(Renew(cluster.keyspace, CHAIN[2], 0))
    assert evicted(cluster, "a", 2) == [OTHER[2], OTHER[1]]


def test_evicting_hands_recency_to_the_parent() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:3]))
    cluster.advance(10)
    cluster.commit("a", blocks_of(OTHER[:3]))
    cluster.advance(10)
    cluster.ask(Renew(cluster.keyspace, CHAIN[2], 0))
    cluster.ask(Remove(cluster.keyspace, OTHER[0]))
    cluster.advance(2)
    cluster.commit("a", blocks_of(OTHER[:1]))
    assert evicted(cluster, "a", 1) == [CHAIN[2]]
    cluster.advance(2)
    cluster.ask(Renew(cluster.keyspace, OTHER[0], 0))
    assert evicted(cluster, "a", 3) == [CHAIN[1], CHAIN[0], OTHER[0]]


def test_equal_ages_go_by_position() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:4]))
    cluster.commit("a", blocks_of(OTHER[:6]))
    assert evicted(cluster, "a", 2) == [OTHER[5], OTHER[4]]
    assert set(evicted(cluster, "a", 4)) == {CHAIN[3], OTHER[3], CHAIN[2], OTHER[2]}


def test_a_lease_on_the_deepest_row_protects_the_run() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN))
    cluster.ask(Match(cluster.keyspace, [(0, join_hashes(CHAIN[:20]))], 3000))
    assert evicted(cluster, "a", 40) == CHAIN[:19:-1]
    cluster.advance(4)
    assert evicted(cluster, "a", 40) == CHAIN[19::-1]


def test_leases_are_only_ever_raised() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:1]))
    cluster.ask(Renew(cluster.keyspace, CHAIN[0], 10_000))
    cluster.ask(Renew(cluster.keyspace, CHAIN[0], 1))
    cluster.advance(9)
    assert evicted(cluster, "a", 1) == []
    cluster.advance(2)
    assert evicted(cluster, "a", 1) == [CHAIN[0]]


def test_pins() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:4]))
    assert cluster.ask(Pin(cluster.keyspace, CHAIN[1])) == Done(1)
    assert cluster.ask(Pin(cluster.keyspace, CHAIN[3], 5000)) == Done(1)
    assert evicted(cluster, "a", 9) == []
    cluster.advance(6)
    assert evicted(cluster, "a", 9) == [CHAIN[3], CHAIN[2]]
    reply = cluster.ask(Remove(cluster.keyspace, CHAIN[0]))
    assert isinstance(reply, Removed)
    assert (reply.count, reply.skipped) == (0, 1)
    assert cluster.ask(Unpin(cluster.keyspace, CHAIN[1])) == Done(1)
    assert evicted(cluster, "a", 9) == [CHAIN[1], CHAIN[0]]


def test_leaves_that_stay_unready_are_the_first_victims() -> None:
    cluster = made(2)
    cluster.commit("a", blocks_of(CHAIN[:3]))
    cluster.advance(30)
    cluster.commit("a", blocks_of(OTHER[:2]), [0])
    assert evicted(cluster, "a", 1) == [CHAIN[2]]
    cluster.advance(62)
    cluster.ask(Renew(cluster.keyspace, CHAIN[1], 0))
    assert evicted(cluster, "a", 2) == [OTHER[1], OTHER[0]]


def test_the_other_ranks_copies_go_too() -> None:
    cluster = made(2, "a", "b")
    cluster.commit("a", blocks_of(CHAIN[:4]), [0])
    cluster.commit("b", blocks_of(CHAIN[:4]), [1])
    victims = cluster.need("a", 2)
    assert [(rank, h) for rank, h, _ in dropped(victims.drops)] == [(0, CHAIN[3]), (0, CHAIN[2])]
    assert sorted(cluster.segments["b"].held) == sorted([(1, CHAIN[0]), (1, CHAIN[1])])


def test_where_no_leaf_lies_on_the_node_others_are_peeled() -> None:
    cluster = made(1, "a", "b")
    cluster.commit("a", blocks_of(CHAIN[:10]))
    cluster.commit("b", blocks_of(CHAIN, 10))
    cluster.commit("b", blocks_of(OTHER))
    assert evicted(cluster, "a", 2) == [CHAIN[9], CHAIN[8]]
    held = cluster.segments["b"].held
    assert sorted(held) == sorted((0, h) for h in OTHER), "what hung on them, and nothing else"


def test_peeling_stops_at_a_lease() -> None:
    cluster = made(1, "a", "b")
    cluster.commit("a", blocks_of(CHAIN[:10]))
    cluster.commit("b", blocks_of(CHAIN, 10))
    cluster.ask(Match(cluster.keyspace, [(0, join_hashes(CHAIN[:20]))], 3000))
    assert evicted(cluster, "a", 2) == []
    assert len(cluster.segments["b"].held) == 30
    cluster.advance(15)
    assert evicted(cluster, "a", 1) == [CHAIN[9]]


def test_a_presence_lease_yields_to_a_put_in_need() -> None:
    cluster = PaperCluster(flat_spec())
    cluster.join("a")
    cluster.commit("a", [Block(h) for h in CHAIN[:3]])
    cluster.ask(Presence(cluster.keyspace, join_hashes(CHAIN[:2]), -1, 5000))
    cluster.ask(Renew(cluster.keyspace, CHAIN[0], 5000))
    assert evicted(cluster, "a", 1) == [CHAIN[2]]
    assert evicted(cluster, "a", 9) == [CHAIN[1]], "nothing else was left but what somebody reads"


@pytest.mark.parametrize("kept", [0, 40])
@pytest.mark.parametrize("a_second", [1, 1000])
def test_a_pool_that_never_fills_keeps_no_entries_of_rows_that_left(a_second: int, kept: int) -> None:
    """Nobody asks for room, so nobody takes entries out of the queues."""
    cluster = PaperCluster(chained_spec())
    cluster.join("a")
    candidates = cluster.core._shards.get(0).table(cluster.keyspace).candidates  # type: ignore[attr-defined]
    stay, come_and_go = blocks_of(OTHER[:kept]), blocks_of(chain(500, "again"))
    cluster.commit("a", stay)
    most = 0
    for cycle in range(200):
        cluster.commit("a", come_and_go)
        cluster.ask(
            Remove(cluster.keyspace, come_and_go[0].block_hash + come_and_go[64].block_hash)
        )  # its runs
        del cluster.segments["a"].outbox[:-1]  # but the confirmation: the master knows already what is freed
        if cycle % a_second == 0:
            cluster.advance(1)
        if cycle % 5 == 0:
            cluster.advance(0.2)
        most = max(most, candidates.entries)
    cluster.core.validate()
    assert most < 65536
    assert cluster.need("a", 100).freed_bytes == kept * BLOCK_BYTES


def test_the_next_age() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:2]))
    cluster.advance(20)
    assert cluster.need("a", 1).next_age_ms == 20_000
    assert cluster.need("a", 1).next_age_ms == -1
    assert cluster.need("a", 1).freed_bytes == 0


def test_keyspaces_compete_by_age() -> None:
    cluster = made()
    cluster.commit("a", blocks_of(CHAIN[:2]))
    first = cluster.keyspace
    cluster.advance(5)
    cluster.spec = chained_spec(name="second")
    cluster.keyspace = cluster.spec.digest()
    cluster.join("a", inventory=False)
    cluster.commit("a", blocks_of(OTHER[:2]))
    cluster.advance(5)
    drops = cluster.need("a", 3).drops
    assert [(part.keyspace, len(part.hashes) // 16) for part in drops] == [(first, 2), (cluster.keyspace, 1)]
