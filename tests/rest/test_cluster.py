"""What the REST interface says of the cluster, and how it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from support.rest_master import HASHES, RestMaster

from moonpool.master.rest.app import rest_routes
from moonpool.master.rest.limits import BODY_BYTES_MAX
from moonpool.schemas.access import Role
from moonpool.schemas.config import MasterSettings


@pytest.fixture
def client(master: RestMaster) -> TestClient:
    return master.client()


def test_health_names_what_is_wrong(client: TestClient) -> None:
    found = client.get("/api/v1/health").json()
    assert found["live"] and found["ready"] and found["reasons"] == [] and found["warnings"] == []
    assert client.get("/api/v1/health/live").json()["live"] is True
    assert client.get("/api/v1/health/ready").status_code == 200


def test_a_master_without_nodes_says_so() -> None:
    with RestMaster() as lonely:
        lonely.run(lonely.node.close())
        warnings = lonely.client().get("/api/v1/health").json()["warnings"]
    assert warnings == ["no node is live: nothing can be stored", "node n1 is suspect"]


def test_a_stopped_master_is_neither_live_nor_ready() -> None:
    with RestMaster() as stopped:
        client = stopped.client()
    answer = client.get("/api/v1/health/ready")
    assert answer.status_code == 503
    assert answer.json()["ready"] is False and "closed" in answer.json()["reasons"][0]
    assert client.get("/api/v1/cluster").json()["error"]["name"] == "Closed"


def test_the_cluster_is_what_the_index_holds(client: TestClient) -> None:
    found = client.get("/api/v1/cluster").json()
    assert (found["blocks"], found["copies"], found["keyspaces"]) == (len(HASHES), len(HASHES), 1)
    assert found["nodes"]["live"] == 1 and found["capacity_bytes"] == 1 << 30
    (node,) = client.get("/api/v1/nodes").json()["items"]
    assert (node["node"], node["state"], node["pages"]) == ("n1", "live", 16)
    assert client.get("/api/v1/nodes/n1").json()["segment"] == node["segment"]
    (master,) = client.get("/api/v1/masters").json()["items"]
    assert (master["asked"], master["shards"], master["connections"]) == (True, [0], 1)
    (shard,) = client.get("/api/v1/shards").json()["items"]
    assert (shard["master"], shard["blocks"]) == (master["address"], len(HASHES))


def test_shards_and_who_owns_them() -> None:
    with RestMaster(settings=MasterSettings(port=0, suspect_after_s=60.0, shards=4)) as master:
        found = master.client().get("/api/v1/shards").json()["items"]
        assert [one["shard"] for one in found] == [0, 1, 2, 3]
        assert sum(one["blocks"] for one in found) == len(HASHES)
        assert {one["master"] for one in found} == {master.address}
        assert master.client().get("/api/v1/cluster").json()["shards"] == 4


def test_shards_of_other_masters() -> None:
    with RestMaster() as master:
        others = ["10.0.0.1:1", master.address, "10.0.0.2:1"]
        core = master.server.parts().core
        core._alone = False
        core.see(others, [1], 7)
        assert [one["asked"] for one in master.client().get("/api/v1/masters").json()["items"]] == [
            False,
            False,
            True,
        ]
        core.see(others, [0], 8)
        masters = {one["id"]: one for one in master.client().get("/api/v1/masters").json()["items"]}
        assert masters["10.0.0.1:1"]["shards"] == [0] and masters["10.0.0.1:1"]["connections"] is None
        core.see(others, [-1], 9)
        (shard,) = master.client().get("/api/v1/shards").json()["items"]
        assert shard["master"] is None
        assert master.client().get("/api/v1/cluster").json()["masters"] == 3


def test_failures_have_one_shape(client: TestClient) -> None:
    answers = {
        404: client.get("/api/v1/nodes/nobody"),
        405: client.delete("/api/v1/cluster"),
        422: client.get("/api/v1/nodes?limit=0"),
        413: client.post("/api/v1/nodes", content=b"x" * (BODY_BYTES_MAX + 1)),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        error = answer.json()["error"]
        assert set(error) == {"code", "name", "message", "details"}
        assert error["message"] and error["details"]
    assert "limit" in answers[422].json()["error"]["message"]
    untyped = client.post("/api/v1/delete", content=b"{}")
    assert untyped.status_code == 422 and "application/json" in untyped.json()["error"]["message"]
    nowhere = client.get("/api/v1/nothing")
    assert nowhere.status_code == 404 and "openapi.json" in nowhere.json()["error"]["message"]


def test_a_web_page_with_a_name_of_its_own_is_refused(client: TestClient) -> None:
    assert client.get("/api/v1/nodes", headers={"host": "pool.example.com"}).status_code == 403
    for host in ("127.0.0.1:50080", "[::1]:50080", "localhost"):
        assert client.get("/api/v1/nodes", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("role", ["", "nonsense", "client", "node", "reader", "monitor", "admin"])
def test_roles(master: RestMaster, role: str) -> None:
    client = master.client(tokens=True)
    headers = {"authorization": f"Bearer {role}"} if role else {}
    allowed = role in ("monitor", "admin")
    refusal = 403 if role in ("client", "node", "reader") else 401
    assert client.get("/api/v1/health", headers=headers).status_code == 200
    for path in ("/api/v1/nodes", "/api/v1/cluster", "/metrics"):
        assert client.get(path, headers=headers).status_code == (200 if allowed else refusal)


def test_nothing_that_changes_anything_is_open_to_readers(master: RestMaster) -> None:
    client = master.client(tokens=True)
    for route in rest_routes():
        for method in route.methods or ():
            path = route.path.format(**dict.fromkeys(route.param_convertors, "x"))
            if method == "GET" or route.path in READING_POSTS:
                continue
            roles = [({"authorization": f"Bearer {role}"}, 403) for role in Role if role is not Role.ADMIN]
            for headers, status in (({}, 401), *roles):
                answer = client.request(method, path, headers=headers, json={})
                assert answer.status_code == status, f"{method} {path}"


READING_POSTS = {"/api/v1/query", "/api/v1/prefixes", "/api/v1/prefixes/text"}
"""Questions that are too long for a URL."""


def test_the_openapi_is_complete(client: TestClient) -> None:
    document = client.get("/api/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"] and operation["description"], f"{method} {path}"
            for parameter in operation.get("parameters", ()):
                assert parameter.get("description") or parameter["schema"].get("description"), parameter
                assert shown(parameter) or shown(parameter["schema"]), f"{method} {path} {parameter['name']}"
    for name, schema in document["components"]["schemas"].items():
        assert schema.get("description"), name
        for field, about in schema.get("properties", {}).items():
            assert shown(schema) or shown(about), f"{name}.{field} has no example"


def shown(schema: dict[str, Any]) -> bool:
    """Whether a reader of the OpenAPI sees a value of it: an example, a default, or what it refers to."""
    said = schema.keys() & {"example", "examples", "default", "enum", "const", "$ref"}
    return bool(said) or "$ref" in schema.get("items", {})
