"""Copies ahead of use: to the node that is named, of what is meant, and never more at once than may wait."""

from __future__ import annotations

import pytest
from support.paper_cluster import BLOCK_BYTES, PaperCluster, blocks_of, chain, chained_spec

from moonpool.master.nodes import CANDIDATES_MAX
from moonpool.master.replicas import wishes
from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown, NotFound
from moonpool.schemas.messages import Remove, Renew, Warm, Warmed

HASHES = chain(20)


def warmed(cluster: PaperCluster, **what: object) -> Warmed:
    reply = cluster.ask(Warm(cluster.keyspace, **what))  # type: ignore[arg-type]
    assert isinstance(reply, Warmed)
    return reply


def copy_all(cluster: PaperCluster, name: str, seconds: int = 20) -> list[bytes]:
    """What that node holds once everybody has copied what was ordered."""
    for _ in range(seconds):
        cluster.advance(1)
        for other in cluster.segments:
            if cluster.carry_out(other):
                cluster.report(other)
        cluster.core.validate()
    return sorted(h for _, h in cluster.segments[name].held)


def filled(nodes: int = 2) -> PaperCluster:
    cluster = PaperCluster(chained_spec())
    for number in range(nodes):
        cluster.join(f"n{number}")
    cluster.commit("n0", blocks_of(HASHES))
    return cluster


def test_the_node_that_is_named_is_found_among_many() -> None:
    cluster, name = filled(CANDIDATES_MAX + 6), f"n{CANDIDATES_MAX + 5}"
    assert warmed(cluster, hashes=HASHES[4], with_prefix=True, node=name) == Warmed(5, 5 * BLOCK_BYTES, 0)
    assert copy_all(cluster, name, 3) == sorted(HASHES[:5])
    assert sum(bool(one.held) for one in cluster.segments.values()) == 2


def test_a_dry_run_orders_nothing() -> None:
    cluster = filled()
    assert warmed(cluster, dry_run=True) == Warmed(20, 20 * BLOCK_BYTES, 0)
    assert not copy_all(cluster, "n1", 3)


def test_what_is_gone_meanwhile_is_not_copied() -> None:
    cluster = filled()
    assert warmed(cluster).copies == 20
    cluster.ask(Remove(cluster.keyspace, HASHES[5], True))
    assert copy_all(cluster, "n1") == sorted(HASHES[:5])


def test_the_hottest_come_first_and_no_more_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "WISHES_MAX", 6)
    cluster = filled()
    used = chain(20, "used")
    cluster.commit("n0", blocks_of(used))
    cluster.now_s += 5
    cluster.ask(Renew(cluster.keyspace, used[13]))
    first = warmed(cluster)
    assert (first.copies, warmed(cluster).copies) == (6, 0)
    assert copy_all(cluster, "n1") == sorted(used[:6]), "with what is used all that it hangs on is"


def test_what_cannot_be_asked() -> None:
    cluster = filled()
    for wrong in ({"copies": 0}, {"copies": 5}, {"hashes": b"odd"}):
        with pytest.raises(InvalidParams):
            warmed(cluster, **wrong)
    with pytest.raises(NotFound):
        warmed(cluster, node="nobody")
    with pytest.raises(KeyspaceUnknown):
        cluster.ask(Warm(bytes(16)))
