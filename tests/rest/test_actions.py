"""Blocks looked at, deleted, pinned, evicted and drained through the REST interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from support.report_node import KEYSPACE
from support.rest_master import HASHES, RestMaster

NAME = KEYSPACE.hex()
KEYS = [f"{NAME}/{block_hash.hex()}" for block_hash in HASHES]


@pytest.fixture
def fresh() -> Iterator[RestMaster]:
    """A master whose blocks a test may remove."""
    with RestMaster() as running:
        yield running


@pytest.fixture
def client(fresh: RestMaster) -> TestClient:
    return fresh.client()


def post(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def every_item(client: TestClient, path: str, limit: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = client.get(f"/api/v1/{path}limit={limit}{cursor}").json()
        assert len(page["items"]) <= limit
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        cursor = f"&cursor={page['next_cursor']}"


def test_a_chain_is_walked_from_its_first_block(client: TestClient) -> None:
    (key,) = [item["key"] for item in every_item(client, f"keyspaces/{NAME}/blocks?only=first&", 3)]
    for position, expected in enumerate(KEYS):
        block = client.get("/api/v1/blocks", params={"key": key}).json()
        assert (block["key"], block["position"], block["ready"]) == (expected, position, True)
        assert block["copies"][0]["node"] == "n1" and block["copies"][0]["slot"] == position
        children = client.get("/api/v1/chains", params={"key": key}).json()
        assert len(children["items"]) == block["children"] == (position < len(KEYS) - 1)
        key = children["items"][0]["key"] if children["items"] else ""
    mooncake = f"model@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{HASHES[3].hex()}"
    assert client.get("/api/v1/blocks", params={"key": mooncake}).json()["key"] == KEYS[3]


def test_pages_of_a_list_have_all_of_it(client: TestClient) -> None:
    for limit in (1, 3, 10, 100):
        items = every_item(client, f"keyspaces/{NAME}/blocks?", limit)
        assert sorted(item["key"] for item in items) == sorted(KEYS)
    (keyspace,) = every_item(client, "keyspaces?", 1)
    assert (keyspace["blocks"], keyspace["size_bytes"]) == (10, 40960)
    (segment,) = every_item(client, "segments?", 1)
    pages = every_item(client, f"segments/{segment['segment']}/pages?", 7)
    assert [page["page"] for page in pages] == list(range(16))
    assert (pages[0]["copies"], pages[0]["used_bytes"], pages[1]["copies"]) == (10, 40960, 0)
    assert pages[0]["last_use_ago_s"] >= 0 and pages[1]["last_use_ago_s"] is None


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        ({"keys": KEYS[7:8]}, 3),
        ({"keyspace": NAME}, 10),
        ({"tenant": "default"}, 10),
        ({"prefix": KEYS[4]}, 10),
    ],
)
def test_a_deletion_does_what_its_dry_run_says(
    client: TestClient, selection: dict[str, Any], count: int
) -> None:
    body = {"selection": selection, "wait_ms": 5000}
    would = post(client, "delete", **body, dry_run=True)
    assert (would["dry_run"], would["count"]) == (True, count)
    assert len(every_item(client, f"keyspaces/{NAME}/blocks?", 100)) == 10
    done = post(client, "delete", **body)
    assert (done["dry_run"], done["count"], done["pending"]) == (False, count, [])
    assert len(every_item(client, f"keyspaces/{NAME}/blocks?", 100)) == 10 - count


def test_pinned_blocks_stay_until_unpinned(client: TestClient) -> None:
    selection = {"prefix": KEYS[4]}
    assert post(client, "pin", selection=selection, dry_run=True)["count"] == 5
    assert not client.get("/api/v1/blocks", params={"key": KEYS[4]}).json()["pinned"]
    assert post(client, "pin", selection=selection, ttl_s=60)["count"] == 5
    assert client.get("/api/v1/blocks", params={"key": KEYS[4]}).json()["pin_ms"] > 50_000
    assert len(every_item(client, f"keyspaces/{NAME}/blocks?only=pinned&", 2)) == 5
    assert post(client, "delete", selection={"keys": KEYS[:1]})["skipped"] == 5
    assert post(client, "unpin", selection={"keyspace": NAME})["count"] == 5
    assert post(client, "pin", selection={"keyspace": NAME})["count"] == 1, "the only leaf"
    assert client.get("/api/v1/blocks", params={"key": KEYS[9]}).json()["pin_ms"] is None


def test_a_node_gives_up_its_next_victims(client: TestClient, fresh: RestMaster) -> None:
    assert post(client, "evict", node="n1", size_bytes=4096, dry_run=True)["freed_bytes"] == 0
    assert post(client, "evict", node="n1", size_bytes=2 * 4096)["freed_bytes"] == 2 * 4096
    left = [item["position"] for item in every_item(client, f"keyspaces/{NAME}/blocks?", 100)]
    assert sorted(left) == list(range(8))
    assert client.post("/api/v1/evict", json={"node": "n2", "size_bytes": 1}).status_code == 404


def test_a_node_is_drained_and_used_again(client: TestClient) -> None:
    assert post(client, "nodes/n1/drain", dry_run=True)["count"] == 1
    assert [post(client, "nodes/n1/drain")["count"] for _ in range(2)] == [1, 0]
    assert post(client, "nodes/n1/drain", on=False)["count"] == 1
    assert client.post("/api/v1/nodes/n2/drain", json={}).status_code == 404


def test_copies_are_ordered_ahead_of_use(client: TestClient) -> None:
    would = post(client, "warm-up", selection={"prefix": KEYS[3]}, dry_run=True)
    assert (would["copies"], would["size_bytes"], would["left_out"]) == (4, 4 * 4096, 0)
    assert post(client, "warm-up", selection={"keyspace": NAME})["copies"] == 10
    assert post(client, "warm-up", selection={"keyspace": NAME}, node="n1")["copies"] == 0, "it has them"
    for wrong in ({"copies": 5}, {"copies": 0}, {"node": "x" * 200}):
        order = {"selection": {"keyspace": NAME}, **wrong}
        assert client.post("/api/v1/warm-up", json=order).status_code == 422
    order = {"selection": {"keyspace": NAME}, "node": "n9"}
    assert client.post("/api/v1/warm-up", json=order).status_code == 404


def test_the_number_of_copies(client: TestClient) -> None:
    path = f"/api/v1/keyspaces/{NAME}/replicas"
    for replicas, dry_run, count in ((2, True, 1), (2, False, 1), (2, False, 0), (1, False, 1)):
        answer = client.put(path, json={"replicas": replicas, "dry_run": dry_run})
        assert answer.json()["count"] == count
        if not dry_run:
            assert client.get(f"/api/v1/keyspaces/{NAME}").json()["replicas"] == replicas
    assert client.put(path, json={"replicas": 9}).status_code == 422
    assert client.put(f"/api/v1/keyspaces/{'0' * 32}/replicas", json={"replicas": 2}).status_code == 404


def test_how_far_a_drain_is(client: TestClient) -> None:
    assert client.get("/api/v1/drains").json()["items"] == []
    post(client, "nodes/n1/drain")
    try:
        (one,) = client.get("/api/v1/drains").json()["items"]
        assert (one["node"], one["moved"], one["left"], one["left_bytes"]) == ("n1", 0, 10, 10 * 4096)
    finally:
        post(client, "nodes/n1/drain", on=False)


def test_selections_are_one_thing(client: TestClient) -> None:
    for selection in ({}, {"tenant": "default", "keyspace": NAME}, {"everything": True}):
        assert client.post("/api/v1/query", json=selection).status_code == 422
    for selection in (
        {"tenant": "nobody"},
        {"keyspace": "00"},
        {"request_id": "r"},
        {"keys": [KEYS[0][:-1] + "x"]},
    ):
        assert client.post("/api/v1/query", json=selection).status_code in (400, 404)
    first = post(client, "query?limit=2", prefix=KEYS[9])
    found = post(client, f"query?limit=2&cursor={first['next_cursor']}", prefix=KEYS[9])
    assert [block["key"] for block in first["items"] + found["items"]] == KEYS[:4]
    assert found["next_cursor"] == found["items"][-1]["cursor"]


def test_a_shard_of_another_epoch_is_listed_anew(client: TestClient) -> None:
    cursor = post(client, "query?limit=4", keyspace=NAME)["next_cursor"]
    place, _, epoch = cursor.rpartition("-")
    for there, items in ((epoch, 6), (str(int(epoch) + 1), 10)):
        assert len(every_item(client, f"keyspaces/{NAME}/blocks?cursor={place}-{there}&", 100)) == items


def test_a_reader_sees_its_own_tenant_only(fresh: RestMaster) -> None:
    client = fresh.client(tokens=True)
    for role, blocks, config in (("reader", 200, 403), ("monitor", 403, 200), ("node", 403, 403)):
        client.headers["authorization"] = f"Bearer {role}"
        assert client.get("/api/v1/blocks", params={"key": KEYS[0]}).status_code == blocks
        assert client.get("/api/v1/config").status_code == config
    client.headers["authorization"] = "Bearer other"
    assert client.get("/api/v1/keyspaces").json()["items"] == []
    assert client.get(f"/api/v1/keyspaces/{NAME}").status_code == 404
    assert client.get("/api/v1/blocks", params={"key": KEYS[0]}).status_code == 404
    for selection in ({"keyspace": NAME}, {"tenant": "default"}, {"keys": KEYS}, {"prefix": KEYS[3]}):
        assert client.post("/api/v1/query", json=selection).status_code == 404


def test_events_are_kept_and_streamed(client: TestClient, fresh: RestMaster) -> None:
    post(client, "nodes/n1/drain")
    kept = client.get("/api/v1/events").json()
    (drained,) = [event for event in kept["items"] if event["kind"] == "drain"]
    beyond = client.get("/api/v1/events", params={"cursor": str(10**15 - 1)}).json()
    assert beyond["items"] == []
    assert int(kept["next_cursor"]) <= int(beyond["next_cursor"]) < 10**14, "taken for the newest"
    headers = {"last-event-id": str(drained["number"] - 1)}
    answer = client.get("/api/v1/events/stream?seconds=0.1", headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    message = next(part for part in answer.text.split("\n\n") if part.startswith("id:"))
    number, kind, data = (line.partition(": ")[2] for line in message.split("\n"))
    assert (number, kind) == (str(drained["number"]), "drain")
    assert json.loads(data) == drained


def test_settings_name_their_origin_and_hide_secrets(client: TestClient) -> None:
    found = {item["name"]: item for item in every_item(client, "config?", 4)}
    assert found["suspect_after_s"]["value"] == 60.0
    assert all(item["description"] for item in found.values())
