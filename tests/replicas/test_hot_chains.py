"""A use is noted at the deepest row of each run alone: whoever plans copies sees that the rest of the run was used too."""

from __future__ import annotations

import numpy as np
import pytest
from replicas.test_hot import TRUNK, Crowd
from support.paper_cluster import BLOCK_BYTES, PaperCluster, blocks_of, chain, chained_spec

from moonpool.master import many_rows
from moonpool.master.chained import ChainedTable
from moonpool.master.columns import view
from moonpool.master.many_rows import lift_uses
from moonpool.schemas.messages import Drain, Heartbeat, Renew

HOT, COLD, LATE = chain(64, "hot"), chain(30, "cold"), chain(5, "late")
GIB = 1 << 30


def lift_all(table: ChainedTable) -> None:
    lift_uses(table, np.arange(table.columns.count))


@pytest.mark.parametrize("most", [1 << 18, 40])
def test_uses_are_handed_up_to_the_start_of_each_run(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(many_rows, "LIFTS_MAX", most)
    cluster = PaperCluster(chained_spec())
    cluster.join("a")
    trunk = chain(600, "trunk")
    forks = [trunk[:20] + chain(60, name)[20:] for name in ("one", "two")]
    for first, end in ((500, 600), (0, 100), (100, 500)):  # rows don't lie in the order of their positions
        cluster.commit("a", blocks_of(trunk[:end], first))
    for fork in forks:
        cluster.commit("a", blocks_of(fork, 20))
    began_s, used_s = cluster.now_s, dict[bytes, float]()
    for deepest in (forks[0][40], trunk[300], trunk[599], trunk[40], forks[1][30]):
        cluster.now_s += 100
        cluster.ask(Renew(cluster.keyspace, deepest))
        used_s[deepest] = cluster.now_s
    table = cluster.core.shards.get(0).table(cluster.keyspace)
    assert isinstance(table, ChainedTable)
    for _ in range(40):
        lift_all(table)

    def uses(hashes: list[bytes]) -> list[float]:
        return [table.last_use_s[row] for row in table.rows.get_all(hashes)]

    assert uses(trunk[:64]) == 20 * [used_s[forks[1][30]]] + 21 * [used_s[trunk[40]]] + 23 * [began_s]
    assert uses(forks[0][20:]) == 21 * [used_s[forks[0][40]]] + 19 * [began_s]
    assert uses(forks[1][20:]) == 11 * [used_s[forks[1][30]]] + 29 * [began_s]
    assert uses(trunk[64:]) == 237 * [used_s[trunk[300]]] + 211 * [began_s] + 88 * [used_s[trunk[599]]]
    before = view(table.last_use_s).copy()
    lift_all(table)
    assert (view(table.last_use_s) == before).all()
    cluster.core.validate()


def drained_to(free_bytes: int) -> set[bytes]:
    """What a node takes from another that is to be emptied and has HOT, an old chain that is used, and COLD, a younger
    one that is not."""
    cluster = PaperCluster(chained_spec())
    cluster.join("full")
    cluster.join("other")
    cluster.commit("full", blocks_of(HOT))
    cluster.commit("other", blocks_of(LATE))
    cluster.now_s += 30
    cluster.commit("full", blocks_of(COLD))
    cluster.now_s += 100
    cluster.ask(Renew(cluster.keyspace, HOT[-1]))
    before = set(cluster.segments["other"].held)

    def heartbeat(name: str) -> None:
        taken = len(cluster.segments[name].held.keys() - before) * BLOCK_BYTES
        message = Heartbeat(cluster.segments[name].info.segment, 7, free_bytes - taken)
        cluster.core.handle(message, cluster.now_s, cluster.origin())

    cluster.heartbeat = heartbeat  # type: ignore[method-assign]
    cluster.ask(Drain("full"))
    for _ in range(20):
        cluster.advance(1)
        cluster.carry_out("other")
        for name in ("other", "full"):
            cluster.report(name)
        cluster.core.validate()
    return {h for _, h in cluster.segments["other"].held.keys() - before}


def test_of_a_full_pool_the_whole_of_a_hot_chain_moves() -> None:
    assert drained_to(GIB // 20) == set(HOT)


def test_with_room_for_a_part_the_start_of_a_hot_chain_moves() -> None:
    kept_free = GIB - int(0.9 * GIB)
    reserve = int(0.02 * GIB)
    assert drained_to(kept_free + 10 * BLOCK_BYTES) >= set(HOT)
    assert drained_to(reserve + 10 * BLOCK_BYTES) == set(HOT[:10])


def hot_crowd() -> Crowd:
    """TRUNK is hot, and node far has copies of it, beside LATE, which was put before."""
    crowd = Crowd()
    crowd.cluster.commit("far", blocks_of(LATE))
    crowd.pass_time(30, 2)
    assert crowd.copies("far") == {*TRUNK, *LATE}
    return crowd


def freed(crowd: Crowd, blocks: int) -> set[bytes]:
    before = crowd.copies("far")
    ranks = crowd.cluster.spec.world
    assert crowd.cluster.need("far", blocks * ranks).freed_bytes == blocks * ranks * BLOCK_BYTES
    crowd.cluster.report("far")
    crowd.cluster.core.validate()
    return before - crowd.copies("far")


def test_colder_leaves_go_before_copies_of_what_is_hot() -> None:
    crowd = hot_crowd()
    assert freed(crowd, 2) == set(LATE[3:])
    crowd.pass_time(20, 2)
    assert crowd.copies("far") == {*TRUNK, *LATE[:3]}
    assert freed(crowd, 2) == set(LATE[1:3])
    assert freed(crowd, 1) == {LATE[0]}
    assert len(freed(crowd, 3)) == 3, "where nothing else is left copies of what is hot go"


def test_copies_of_what_was_hot_go_before_leaves_that_were_used_since() -> None:
    crowd = hot_crowd()
    crowd.pass_time(20, 0)
    crowd.cluster.ask(Renew(crowd.cluster.keyspace, LATE[-1]))
    fresh = chain(5, "fresh")
    crowd.cluster.commit("far", blocks_of(fresh))
    assert freed(crowd, 6) == set(TRUNK)


def test_copies_of_what_has_cooled_go() -> None:
    crowd = hot_crowd()
    crowd.pass_time(75, 0)
    assert crowd.copies("far") == set(LATE)
