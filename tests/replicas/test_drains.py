"""Nodes that are emptied: the hottest first, as far as there is room, and nothing is lost on the way."""

from __future__ import annotations

import threading

from replicas.pool import SIZE_BYTES, Chain, ReplicaPool
from support.commands import moonpool
from support.paper_cluster import BLOCK_BYTES, PaperCluster, blocks_of, chain, flat_spec
from support.waiting import wait_until

from moonpool.schemas.messages import Drain, DrainProgress, Drains, GetDrains, Heartbeat, Renew


def drained(cluster: PaperCluster) -> DrainProgress:
    reply = cluster.ask(GetDrains())
    assert isinstance(reply, Drains)
    (one,) = reply.nodes
    return one


def test_with_room_for_some_the_hottest_go() -> None:
    cluster = PaperCluster(flat_spec())
    cluster.join("full")
    hashes = chain(20)
    cluster.commit("full", blocks_of(hashes))
    cluster.join("other")
    cluster.now_s += 10
    cluster.ask(Renew(cluster.keyspace, b"".join(hashes[10:13])))
    tenth = (1 << 30) - int(0.9 * (1 << 30))
    room = Heartbeat(cluster.segments["other"].info.segment, 7, tenth + 3 * BLOCK_BYTES)
    cluster.heartbeat = lambda name: cluster.core.handle(room, cluster.now_s, cluster.origin())  # type: ignore[method-assign,assignment]
    cluster.heartbeat("other")
    cluster.ask(Drain("full"))
    for _ in range(30):
        cluster.heartbeat("other")
        cluster.deliver(cluster.core.tick(cluster.now_s))
        cluster.work()
        cluster.now_s += 0.2
        cluster.carry_out("other")
        if cluster.segments["other"].held:
            room = Heartbeat(room.segment, 7, tenth)
        cluster.report("other")
        cluster.report("full")
    assert sorted(h for _, h in cluster.segments["other"].held) == sorted(hashes[10:13])
    found = drained(cluster)
    assert (found.node, found.moved, found.left, found.no_space) == ("full", 3, 17, 17)
    assert (found.moved_bytes, found.left_bytes) == (3 * BLOCK_BYTES, 17 * BLOCK_BYTES)
    assert len(cluster.segments["full"].held) == 17, "what was moved is still there"
    cluster.ask(Drain("full", False))
    assert cluster.ask(GetDrains()) == Drains([])


def test_a_node_is_emptied_while_it_is_read() -> None:
    with ReplicaPool("a", "b") as pool:
        chain = Chain("moving", 150)
        chain.put(pool.client)
        (full,) = {pool.holders(chain.keyspace, h)[0] for h in chain.hashes[:1]}
        ended, reads = threading.Event(), list[int]()

        def read() -> None:
            while not ended.is_set():
                reads.append(chain.get(pool.client))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            done = moonpool("drain", full, "--wait", "--master", pool.master.address, "--json")
        finally:
            ended.set()
            reader.join()
        assert done.code == 0, done.err
        assert done.json["left"] == done.json["no_space"] == 0 < done.json["moved"]
        assert reads and min(reads) == 150, "a read missed what was being moved"
        assert all(full not in pool.holders(chain.keyspace, h) for h in chain.hashes)
        wait_until(lambda: pool.nodes[full].status()["objects"] == 0)
        fresh = Chain("put meanwhile", 4)
        fresh.put(pool.client)
        assert full not in pool.holders(fresh.keyspace, fresh.hashes[0])


def test_a_drain_goes_on_after_a_restart_of_the_master(tmp_path: object) -> None:
    quick = ("--store", f"file:{tmp_path}/state", "--heartbeat-s", "0.2", "--copy-bytes-per-s", "262144")
    with ReplicaPool("a", "b", master=quick, size=SIZE_BYTES) as pool:
        chain = Chain("resumed", 60)
        chain.put(pool.client)
        full = pool.holders(chain.keyspace, chain.hashes[0])[0]
        assert pool.client.admin.drain(full)
        wait_until(lambda: any(one.moved for one in pool.client.admin.drains()))
        pool.master.kill()
        pool.master.start()
        wait_until(lambda: pool.live() == {"a", "b"})
        assert [one.node for one in pool.client.admin.drains()] == [full]
        wait_until(lambda: not pool.client.admin.drains()[0].left)
        assert chain.get(pool.client) == 60
