"""Copies and quotas: none is made that takes its tenant over, whoever wants it; a drain still empties its node."""

from __future__ import annotations

import pytest
from support.paper_cluster import BLOCK_BYTES, PaperCluster, blocks_of, chain, chained_spec, flat_spec

from moonpool.schemas.config import MasterSettings
from moonpool.schemas.messages import (
    Drain,
    Drains,
    GetDrains,
    Message,
    Probe,
    ProbedRun,
    PutItem,
    PutStart,
    SetReplicas,
    SetTenant,
    Warm,
)
from moonpool.schemas.packed import join_hashes

NAMES = ("a", "b", "c", "d")
HASHES = chain(8)
PROBE = [ProbedRun(0, len(HASHES), 1, join_hashes(HASHES))]


def cluster_of(blocks: int, *, chained: bool = False) -> PaperCluster:
    """Eight blocks are stored, on one node of four; a quota of so many."""
    spec = chained_spec() if chained else flat_spec()
    cluster = PaperCluster(spec, MasterSettings(hot_hits_per_min=60))
    for name in NAMES:
        cluster.join(name)
    cluster.ask(SetTenant(spec.tenant, blocks * BLOCK_BYTES))
    cluster.commit("a", blocks_of(HASHES))
    return cluster


def used_blocks(cluster: PaperCluster) -> int:
    return int(cluster.core.tenants.facts(cluster.spec.tenant)["used_bytes"]) // BLOCK_BYTES


def pass_time(cluster: PaperCluster, seconds: int = 20, *asked: Message) -> int:
    """Copies that were made meanwhile. `asked`: each second."""
    made = 0
    for _ in range(seconds):
        for message in asked:
            cluster.ask(message)
        cluster.advance(1)
        for name in NAMES:
            made += cluster.carry_out(name)
            if cluster.segments[name].outbox:
                cluster.report(name)
        cluster.core.validate()
    return made


def test_replicas_are_made_as_far_as_the_quota_goes() -> None:
    cluster = cluster_of(10)
    cluster.ask(SetReplicas(cluster.keyspace, 4))
    assert (pass_time(cluster), used_blocks(cluster)) == (2, 10)
    cluster.ask(SetTenant(cluster.spec.tenant, 20 * BLOCK_BYTES))
    assert (pass_time(cluster), used_blocks(cluster)) == (10, 20), "a larger quota is used"
    cluster.ask(SetTenant(cluster.spec.tenant, 0))
    assert (pass_time(cluster), used_blocks(cluster)) == (12, 32)


def test_what_was_promised_to_writers_is_left_to_them() -> None:
    cluster = cluster_of(10)
    cluster.ask(PutStart([PutItem(cluster.keyspace, 0, 0, b"", chain(1, "new")[0], BLOCK_BYTES)]))
    cluster.ask(SetReplicas(cluster.keyspace, 2))
    assert (pass_time(cluster, 3), used_blocks(cluster)) == (1, 9)


def test_warm_up_gives_up_what_is_too_much() -> None:
    cluster = cluster_of(11)
    cluster.ask(Warm(cluster.keyspace))
    assert (pass_time(cluster), used_blocks(cluster)) == (3, 11)
    assert cluster.core.replication.facts()["copies_wished"] == 0


@pytest.mark.parametrize(("quota", "copies"), [(8, 0), (11, 3), (20, 12), (40, 16)])
def test_hot_prefixes_get_no_more_than_the_quota_holds(quota: int, copies: int) -> None:
    cluster = cluster_of(quota, chained=True)
    probe = Probe(cluster.keyspace, PROBE)
    assert (pass_time(cluster, 30, probe, probe), used_blocks(cluster)) == (copies, 8 + copies)


def test_a_node_is_emptied_though_the_tenant_has_reached_its_quota() -> None:
    cluster = cluster_of(8)
    cluster.ask(Drain("a"))
    assert (pass_time(cluster), used_blocks(cluster)) == (8, 8)
    reply = cluster.ask(GetDrains())
    assert isinstance(reply, Drains) and (reply.nodes[0].moved, reply.nodes[0].left) == (8, 0)
