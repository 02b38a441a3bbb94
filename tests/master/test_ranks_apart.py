"""Flat keyspaces whose objects have sizes of their own: each rank of a row stands alone."""

from __future__ import annotations

import pytest
from support.paper_cluster import Block, PaperCluster, blocks_of, chain, chained_spec

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Describe,
    Description,
    Keyspaces,
    ListKeyspaces,
    Locate,
    Located,
    Pin,
    Presence,
    Present,
    RegisterKeyspace,
    Remove,
    Removed,
)
from moonpool.schemas.packed import join_hashes, u64s

ROWS = [Block(block_hash) for block_hash in chain(6)]
HASHES = [row.block_hash for row in ROWS]
SPEC = KeyspaceSpec(kind=Kind.FLAT, name="model", shard_bytes=(0,) * 8, hash_bytes=16)


def made() -> PaperCluster:
    cluster = PaperCluster(SPEC)
    for name in ("a", "b"):
        cluster.join(name)
    return cluster


def present(cluster: PaperCluster, rank: int) -> list[int]:
    reply = cluster.ask(Presence(cluster.keyspace, join_hashes(HASHES), rank))
    assert isinstance(reply, Present)
    return list(reply.bits)


def removed(cluster: PaperCluster, hashes: list[bytes], rank: int, force: bool = False) -> Removed:
    reply = cluster.ask(Remove(cluster.keyspace, join_hashes(hashes), force, rank=rank))
    assert isinstance(reply, Removed)
    cluster.core.validate()
    return reply


def test_one_rank_makes_a_row_ready() -> None:
    cluster = made()
    cluster.commit("a", ROWS[:2], [3])
    cluster.core.validate()
    assert present(cluster, 3) == [1, 1, 0, 0, 0, 0]
    assert present(cluster, 2) == [0] * 6
    description = cluster.ask(Describe(cluster.keyspace, HASHES[0]))
    assert isinstance(description, Description)
    assert description.ready
    located = cluster.ask(Locate(cluster.keyspace, 3, hashes=join_hashes(HASHES)))
    assert isinstance(located, Located)
    assert (u64s(located.generations) > 0).tolist() == [True, True, False, False, False, False]


def test_rows_with_few_ranks_are_no_better_victims_than_others() -> None:
    """Rows that stay unready go first. These are never unready, whichever ranks they have."""
    cluster = made()
    cluster.commit("a", ROWS[:3])
    cluster.advance(5)
    cluster.commit("a", ROWS[3:], [0])
    cluster.advance(120)
    cluster.need("a", 1)
    cluster.core.validate()
    assert present(cluster, 0)[3:] == [1, 1, 1]
    assert present(cluster, 0)[:3].count(0) == 1


def test_a_rank_that_is_gone_leaves_the_others() -> None:
    cluster = made()
    cluster.commit("a", ROWS[:1], [0])
    cluster.commit("b", ROWS[:1], [1])
    cluster.disconnect("a")
    cluster.advance(60)
    cluster.core.validate()
    assert present(cluster, 0)[0] == 0
    assert present(cluster, 1)[0] == 1


def test_one_rank_can_be_removed() -> None:
    cluster = made()
    cluster.commit("a", ROWS[:2], [0, 1])
    assert removed(cluster, HASHES[:3], 0) == Removed(2, 0, [])
    assert present(cluster, 0) == [0] * 6
    assert present(cluster, 1) == [1, 1, 0, 0, 0, 0]
    assert sorted(cluster.segments["a"].held) == sorted((1, block_hash) for block_hash in HASHES[:2])
    assert removed(cluster, HASHES[:1], 1) == Removed(1, 0, [])
    assert cluster.core.status(0)["rows"] == 1


def test_a_pinned_rank_is_removed_by_force_only() -> None:
    cluster = made()
    cluster.commit("a", ROWS[:1], [0])
    cluster.ask(Pin(cluster.keyspace, HASHES[0]))
    assert removed(cluster, HASHES[:1], 0) == Removed(0, 1, [])
    assert removed(cluster, HASHES[:1], 0, force=True) == Removed(1, 0, [])


def test_a_rank_of_a_chain_cannot_be_removed() -> None:
    cluster = PaperCluster(chained_spec(2))
    cluster.join("a")
    cluster.commit("a", blocks_of(chain(3)))
    with pytest.raises(InvalidParams, match="rank"):
        cluster.ask(Remove(cluster.keyspace, chain(3)[0], rank=0))
    with pytest.raises(InvalidParams, match="rank"):
        made().ask(Remove(SPEC.digest(), HASHES[0], rank=8))


def test_a_tenants_keyspaces() -> None:
    cluster = made()
    other = KeyspaceSpec(kind=Kind.FLAT, name="other", shard_bytes=(0,), hash_bytes=16, tenant="team")
    cluster.ask(RegisterKeyspace(other))
    assert cluster.ask(ListKeyspaces("default")) == Keyspaces([SPEC])
    assert cluster.ask(ListKeyspaces("team")) == Keyspaces([other])
    assert cluster.ask(ListKeyspaces("nobody")) == Keyspaces([])
