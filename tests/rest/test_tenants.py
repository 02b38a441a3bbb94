"""Tenants over REST: what they store, quotas, and their end; of one master and of two."""

from __future__ import annotations

from typing import Any

import pytest
from support.report_node import KEYSPACE
from support.rest_cluster import KEYS, KEYS_AS_VALUES, Cluster
from support.rest_master import HASHES, RestMaster
from support.waiting import wait_until

from moonpool.schemas.config import MasterSettings
from moonpool.schemas.messages import Status

SETTINGS = MasterSettings(port=0, suspect_after_s=60.0, quotas="green=5MB")


def test_a_tenant_from_its_quota_to_its_end() -> None:
    with RestMaster(settings=SETTINGS) as master:
        client = master.client()

        def names() -> dict[str, int]:
            items = client.get("/api/v1/tenants").json()["items"]
            return {one["tenant"]: one["quota_bytes"] for one in items}

        assert names() == {"default": 0, "green": 5 << 20}
        for dry_run, known in ((True, False), (False, True)):
            answer = client.put("/api/v1/tenants/red", json={"quota_bytes": 7, "dry_run": dry_run})
            assert (answer.status_code, answer.json()["changed"]) == (200, True)
            assert ("red" in names()) is known
        assert client.put("/api/v1/tenants/red", json={"quota_bytes": 7}).json()["changed"] is False
        assert client.get("/api/v1/tenants/red").json()["quota_bytes"] == 7
        client.put("/api/v1/tenants/green", json={"quota_bytes": 9})
        for name, left in (("red", None), ("green", 5 << 20)):
            assert client.delete(f"/api/v1/tenants/{name}").json()["count"] == 0
            assert names().get(name) == left, "what the settings say holds again"
        assert client.get("/api/v1/tenants/red").status_code == 404
        assert client.delete("/api/v1/tenants/red").status_code == 404


def test_a_tenant_s_blocks_go_with_it() -> None:
    with RestMaster(settings=SETTINGS) as master:
        client = master.client()
        before = client.get("/api/v1/tenants/default").json()
        assert (before["blocks"], before["copies"], before["keyspaces"]) == (10, 10, 1)
        assert before["used_bytes"] == 40960
        client.post("/api/v1/pin", json={"selection": {"keys": [f"{KEYSPACE.hex()}/{HASHES[4].hex()}"]}})
        url = "/api/v1/tenants/default?wait_ms=5000"
        assert client.delete(f"{url}&dry_run=true&force=true").json()["count"] == 10
        kept = client.delete(url).json()
        assert (kept["count"], kept["skipped"]) == (0, 1), "a pin keeps its chain"
        assert client.delete(f"{url}&force=true").json()["count"] == 10
        assert client.get("/api/v1/tenants/default").json()["blocks"] == 0
        kinds = [event["kind"] for event in client.get("/api/v1/events").json()["items"]]
        assert kinds.count("tenant") == 2


def test_roles_of_tenants(master: RestMaster) -> None:
    client = master.client(tokens=True)

    def ask(role: str, path: str = "") -> tuple[int, list[Any]]:
        answer = client.get(f"/api/v1/tenants{path}", headers={"authorization": f"Bearer {role}"})
        return answer.status_code, answer.json().get("items", [])

    assert ask("node")[0] == 403
    for role, status in (("other", 404), ("reader", 200), ("monitor", 200)):
        assert ask(role, "/default")[0] == status
    assert ask("other")[1] == [] and len(ask("reader")[1]) == 1
    assert client.put("/api/v1/tenants/x", json={"quota_bytes": -1}).status_code in (401, 422)


@pytest.mark.etcd
@pytest.mark.parametrize("asked", [0, 1])
def test_tenants_of_two_masters(cluster: Cluster, asked: int) -> None:
    def of(master: int, name: str = "red") -> dict[str, Any]:
        found: dict[str, Any] = cluster.ask(master, f"tenants/{name}")[1]
        return found

    wait_until(lambda: set(cluster.client.batch_put(KEYS, KEYS_AS_VALUES)) <= {Status.OK, Status.EXISTS})
    assert of(asked)["blocks"] >= len(KEYS) and of(asked)["unanswered"] == []
    status, answer = cluster.ask(asked, "tenants/red", {"quota_bytes": 1 << 30}, method="PUT")
    assert status == 200 and answer["unanswered"] == []
    assert [of(master)["quota_bytes"] for master in (0, 1)] == [1 << 30] * 2
    dry = cluster.ask(asked, "tenants/red?dry_run=true&force=true", method="DELETE")[1]
    assert dry["count"] == of(asked)["blocks"] > 0
    status, gone = cluster.ask(1 - asked, "tenants/red?force=true&wait_ms=5000", method="DELETE")
    assert (status, gone["count"], gone["unanswered"]) == (200, dry["count"], [])
    assert (of(asked)["blocks"], of(asked)["quota_bytes"]) == (0, 0)
    wait_until(lambda: of(1 - asked)["quota_bytes"] == 0)
    assert cluster.ask(asked, "tenants/nobody", method="DELETE")[0] == 404
