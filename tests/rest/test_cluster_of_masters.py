"""Two masters over a real etcd, with tokens and TLS: whichever is asked over HTTPS answers for both."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.guarded import TOKENS
from support.rest_cluster import HASHES, KEYS, KEYSPACE, Cluster

pytestmark = pytest.mark.etcd


@pytest.mark.parametrize("asked", [0, 1])
def test_lists_add_up(cluster: Cluster, asked: int) -> None:
    def items(path: str) -> list[Any]:
        status, page = cluster.ask(asked, path)
        assert status == 200 and page["unanswered"] == [] and page["next_cursor"] is None
        return page["items"]

    assert {master["id"] for master in items("masters")} == {master.address for master in cluster.masters}
    shards = items("shards")
    assert [shard["shard"] for shard in shards] == [0, 1, 2, 3]
    assert {shard["master"] for shard in shards} == {master.address for master in cluster.masters}
    assert sum(shard["blocks"] for shard in shards) == len(KEYS)
    assert [node["node"] for node in items("nodes")] == ["n0"]
    (keyspace,) = [one for one in items("keyspaces") if one["keyspace"] == KEYSPACE]
    assert keyspace["blocks"] == keyspace["copies"] == len(KEYS)
    whole = cluster.ask(asked, "cluster")[1]
    assert whole["masters"] == 2 and whole["shards"] == 4 and whole["blocks"] == len(KEYS)
    assert whole["nodes"]["live"] == 1 and whole["capacity_bytes"] == items("nodes")[0]["capacity_bytes"]
    assert cluster.ask(asked, f"keyspaces/{KEYSPACE}")[1]["blocks"] == len(KEYS)
    assert cluster.ask(asked, "nodes/n0")[0] == 200 and cluster.ask(asked, "nodes/n9")[0] == 404


@pytest.mark.parametrize("asked", [0, 1])
def test_pages_of_a_cluster(cluster: Cluster, asked: int) -> None:
    first = cluster.ask(asked, "shards?limit=3")[1]
    rest = cluster.ask(asked, f"shards?limit=3&cursor={first['next_cursor']}")[1]
    assert [shard["shard"] for shard in first["items"] + rest["items"]] == [0, 1, 2, 3]


def test_a_block_is_found_through_any_master(cluster: Cluster) -> None:
    shards = {}
    for one in HASHES[:12]:
        here, there = (cluster.ask(asked, f"blocks?key={KEYSPACE}/{one}") for asked in (0, 1))
        assert here[0] == there[0] == 200 and here[1]["hash"] == there[1]["hash"] == one
        shards[here[1]["shard"]] = one
    assert len(shards) > 2, "both masters own some of them"
    own = [
        cluster.ask(asked, f"blocks?key={KEYSPACE}/{one}", headers={"x-moonpool-own-part": "1"})[0]
        for one in shards.values()
        for asked in (0, 1)
    ]
    assert sorted(own) == [200] * len(shards) + [404] * len(shards), (
        "a master that a master asked asks nobody"
    )
    assert cluster.ask(0, f"blocks?key={KEYSPACE}/{'ab' * (len(HASHES[0]) // 2)}")[0] == 404


def test_actions_reach_the_owners(cluster: Cluster) -> None:
    keys = {"selection": {"keys": [f"{KEYSPACE}/{one}" for one in HASHES[:8]]}}
    assert cluster.ask(1, "pin", keys)[1]["count"] == 8
    assert cluster.ask(0, "cluster")[1]["pins"] == 8
    assert cluster.ask(0, "unpin", keys)[1]["count"] == 8
    drained = [cluster.ask(0, "nodes/n0/drain", {"on": on}) for on in (True, False)]
    assert [(status, outcome["count"]) for status, outcome in drained] == [(200, 1), (200, 1)]
    dry = cluster.ask(0, "delete", {"selection": {"keyspace": KEYSPACE}, "dry_run": True})[1]
    assert dry["count"] == len(KEYS) and dry["unanswered"] == []
    assert cluster.ask(0, "delete", keys)[1]["count"] == 8
    assert cluster.ask(1, f"keyspaces/{KEYSPACE}")[1]["blocks"] == len(KEYS) - 8
    assert cluster.ask(1, "delete", keys)[0] == 404


def test_each_master_decides_by_the_visitors_token(cluster: Cluster) -> None:
    path = f"blocks?key={KEYSPACE}/{HASHES[20]}"
    for asked in (0, 1):
        for name, status in (("red", 200), ("reader", 200), ("blue", 404)):
            headers = {"authorization": f"Bearer {TOKENS[name]}"}
            assert cluster.ask(asked, path, headers=headers)[0] == status
        assert cluster.ask(asked, path, headers={"authorization": "Bearer nobody"})[0] == 401
        assert cluster.ask(asked, "masters", headers=headers)[0] == 403


def test_a_frozen_master_is_named(cluster: Cluster) -> None:
    frozen = cluster.masters[1]
    there = next(one for one in HASHES[8:] if asked_alone(cluster, 1, one))
    frozen.freeze()
    try:
        with ThreadPoolExecutor() as threads:
            block = threads.submit(cluster.ask, 0, f"blocks?key={KEYSPACE}/{there}")
            status, page = cluster.ask(0, "masters")
            code, failure = block.result(120)
    finally:
        frozen.thaw()
    assert status == 200
    assert {master["id"]: master["asked"] for master in page["items"]} == {
        cluster.masters[0].address: True,
        frozen.address: False,
    }
    (missing,) = page["unanswered"]
    assert missing["master"] == frozen.address and missing["http"] == cluster.pages[1]
    assert code == 503 and cluster.pages[1] in failure["error"]["message"]


def asked_alone(cluster: Cluster, master: int, one: str) -> bool:
    path = f"blocks?key={KEYSPACE}/{one}"
    return cluster.ask(master, path, headers={"x-moonpool-own-part": "1"})[0] == 200
