"""Two masters over a real etcd, with tokens and TLS: whichever is asked over HTTPS answers for both."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from client.pool import wait_until
from support.etcd_server import EtcdServer
from support.guarded import TOKENS, Certificates, write_tokens
from support.processes import MasterProcess, NodeProcess

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import Status
from moonpool.store_client import StoreClient
from moonpool.store_client.cli.serve import port_to_serve
from moonpool.store_client.objects import hashes_of

pytestmark = pytest.mark.etcd

KEYS = [f"object {i}" for i in range(40)]
KEYSPACE = objects_keyspace("red").digest().hex()
HASHES = [one.hex() for one in hashes_of(KEYS)]


class Cluster:
    """Two masters with REST interfaces, a node, and objects that lie in shards of both."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        etcd = stack.enter_context(EtcdServer(folder))
        certificates = Certificates(folder)
        self._trust = ssl.create_default_context(cafile=certificates.ca)
        guards = {**certificates.mutual, "tokens_file": str(write_tokens(folder / "tokens.json"))}
        self.pages = [f"https://127.0.0.1:{port_to_serve('127.0.0.1', 0)}" for _ in range(2)]
        flags = [
            "--store",
            f"etcd://{etcd.endpoint}",
            "--shards",
            "4",
            "--lease-s",
            "15",
            "--dashboard=false",
        ]
        flags += [f"--{name.replace('_', '-')}={value}" for name, value in guards.items()]
        self.masters = [
            stack.enter_context(MasterProcess([*flags, f"--http-port={page.rpartition(':')[2]}"]))
            for page in self.pages
        ]
        addresses = ",".join(master.address for master in self.masters)
        stack.enter_context(NodeProcess(addresses, name="n0", prefault=False, token=TOKENS["node"], **guards))
        self.client = stack.enter_context(
            StoreClient(
                ClientSettings(master=addresses, tenant="red", token=TOKENS["red"], **certificates.mutual)
            )
        )
        wait_until(lambda: sorted(map(len, self.owned())) == [2, 2], 30)
        wait_until(lambda: set(self.client.batch_put(KEYS, KEYS_AS_VALUES)) <= {Status.OK, Status.EXISTS}, 30)

    def owned(self) -> list[list[int]]:
        """Shards by master."""
        return [master["shards"] for master in self.ask(0, "masters")[1]["items"] if master["asked"]]

    def ask(
        self, master: int, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """(status, document)."""
        said = {"content-type": "application/json", "authorization": f"Bearer {TOKENS['admin']}"}
        request = urllib.request.Request(
            f"{self.pages[master]}/api/v1/{path}",
            json.dumps(body).encode() if body is not None else None,
            said | (headers or {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._trust) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


KEYS_AS_VALUES = [key.encode() for key in KEYS]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path_factory.mktemp("etcd"))


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
            code, failure = block.result(30)
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
