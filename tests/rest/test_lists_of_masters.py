"""Lists, prefixes, events and history of two masters: any of them gives out all of it, in pages, once."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.guarded import TOKENS
from support.rest_cluster import Cluster
from support.rest_master import real_chain
from support.waiting import wait_until

from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Status
from moonpool.store_client import BlockPut, Fragments

pytestmark = pytest.mark.etcd

BLOCK_BYTES = 4096
CHAINS = [real_chain(100, f"prompt {number}") for number in range(6)]
"""Two runs each: twelve that lie in four shards of two masters."""
SPEC = KeyspaceSpec(
    kind=Kind.CHAINED, name="words", shard_bytes=(BLOCK_BYTES,), block_tokens=16, tenant="red", hash_bytes=16
)
KEYSPACE = SPEC.digest().hex()
OWN = {"x-moonpool-own-part": "1"}


@pytest.fixture(scope="module")
def pool(cluster: Cluster) -> Iterator[Cluster]:
    """With all chains in it, each asked for once more than the one before."""
    client = cluster.client
    keyspace = client.register_keyspace(SPEC)
    memory = np.zeros((len(CHAINS[0]), BLOCK_BYTES), np.uint8)
    addresses = memory.ctypes.data + np.arange(len(memory), dtype=np.uint64) * BLOCK_BYTES
    source = Fragments.grid(addresses.reshape(-1, 1).astype(np.uint64), np.array([[BLOCK_BYTES]], np.uint64))
    asked = [0] * len(CHAINS)
    for number, chain in enumerate(CHAINS):

        def is_there(chain: list[bytes] = chain) -> bool:
            (statuses,) = client.put_blocks([BlockPut(keyspace, 0, chain, 0, source)])
            return set(statuses.tolist()) <= {Status.OK, Status.EXISTS}

        def is_ready(chain: list[bytes] = chain, number: int = number) -> bool:
            asked[number] += 1
            return client.match(keyspace, chain) == len(chain)

        wait_until(is_there)
        wait_until(is_ready)
    for more, chain in enumerate(CHAINS):
        for _ in range(max(asked) + more - asked[more]):
            client.match(keyspace, chain)
    yield cluster
    client.clear(keyspace)


def everything(
    cluster: Cluster, asked: int, path: str, limit: int, body: object = None, **headers: str
) -> list[Any]:
    """The items of all pages."""
    items: list[Any] = []
    cursor = ""
    while True:
        mark = "&" if "?" in path else "?"
        status, page = cluster.ask(asked, f"{path}{mark}limit={limit}{cursor}", body, headers)
        assert status == 200 and page["unanswered"] == [] and len(page["items"]) <= limit, page
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        cursor = f"&cursor={page['next_cursor']}"


@pytest.mark.parametrize(("asked", "limit"), [(0, 70), (1, 1000)])
def test_blocks_come_once_and_in_order(pool: Cluster, asked: int, limit: int) -> None:
    wanted = sorted(one.hex() for chain in CHAINS for one in chain)
    for path, body in (
        (f"keyspaces/{KEYSPACE}/blocks", None),
        ("query", {"keyspace": KEYSPACE}),
        ("query", {"keys": [f"{KEYSPACE}/{one}" for one in wanted]}),
    ):
        found = everything(pool, asked, path, limit, body)
        assert sorted(block["hash"] for block in found) == wanted
        assert [block["cursor"] for block in found] == sorted(block["cursor"] for block in found)
        own = pool.ask(asked, f"{path}?limit=1000", body, OWN)[1]["items"]
        assert 0 < len(own) < len(found), "both masters have some"
    roots = everything(pool, asked, f"keyspaces/{KEYSPACE}/blocks?only=first", limit)
    assert {block["hash"] for block in roots} == {chain[0].hex() for chain in CHAINS}


@pytest.mark.parametrize("asked", [0])
def test_pins_of_all_masters(pool: Cluster, asked: int) -> None:
    selection = {"selection": {"keys": [f"{KEYSPACE}/{chain[99].hex()}" for chain in CHAINS]}}
    assert pool.ask(asked, "pin", selection)[1]["count"] == len(CHAINS)
    assert {block["hash"] for block in everything(pool, 1 - asked, "pins", 2)} == {
        chain[99].hex() for chain in CHAINS
    }
    assert pool.ask(asked, "unpin", selection)[1]["count"] == len(CHAINS)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_prefix_is_put_together_of_its_runs(pool: Cluster, asked: int) -> None:
    split = 0
    for chain in CHAINS:
        prompt = {"hashes": [one.hex() for one in [*chain[:90], *real_chain(10, "other")]]}
        status, answer = pool.ask(asked, "prefixes", prompt)
        (prefix,) = answer["items"]
        assert status == 200 and answer["unanswered"] == []
        assert (prefix["keyspace"], prefix["blocks"], prefix["tokens"]) == (KEYSPACE, 90, 1440)
        assert [(run["first"], run["blocks"]) for run in prefix["runs"]] == [(0, 64), (64, 26)]
        (node,) = prefix["nodes"]
        assert (node["node"], node["copies"], node["score"]) == ("n0", 90, 0.9)
        assert len(prefix["engines"]) == 1, "known to both masters, named once"
        assert all(one["score"] == (0.9 if one["host"] == node["host"] else 0) for one in prefix["engines"])
        hashes = ",".join(prompt["hashes"])
        assert pool.ask(asked, f"route?hashes={hashes}&keyspace={KEYSPACE}")[1]["items"] == [prefix]
        parts = [pool.ask(master, "prefixes", prompt, OWN)[1]["items"] for master in (0, 1)]
        split += all(parts)
    assert split, "some prompt has a run at each master"


@pytest.mark.parametrize("asked", [1])
def test_what_is_asked_for_most(pool: Cluster, asked: int) -> None:
    status, top = pool.ask(asked, f"top-prefixes?keyspace={KEYSPACE}&limit=4")
    assert status == 200 and top["unanswered"] == []
    assert [one["key"].partition("/")[2] for one in top["items"]] == [
        chain[0].hex() for chain in CHAINS[:1:-1]
    ]


@pytest.mark.parametrize("asked", [1])
def test_segments_add_up(pool: Cluster, asked: int) -> None:
    (segment,) = everything(pool, asked, "segments", 10)
    own = [pool.ask(master, "segments", headers=OWN)[1]["items"][0]["copies"] for master in (0, 1)]
    assert segment["copies"] == sum(own) and min(own) > 0
    assert pool.ask(asked, f"segments/{segment['segment']}")[1]["copies"] == sum(own)
    pages = everything(pool, asked, f"segments/{segment['segment']}/pages", 5)
    assert [page["page"] for page in pages] == list(range(segment["pages"]))
    assert sum(page["copies"] for page in pages) == sum(own)
    assert all(0 <= page["fill"] <= 1 for page in pages)


@pytest.mark.parametrize("asked", [0])
def test_a_node_gives_up_the_oldest_of_all_masters(pool: Cluster, asked: int) -> None:
    def blocks() -> int:
        found: int = pool.ask(asked, f"keyspaces/{KEYSPACE}")[1]["blocks"]
        return found

    order = {"node": "n0", "size_bytes": 8 * BLOCK_BYTES}
    dry = pool.ask(asked, "evict", {**order, "dry_run": True})[1]
    before = blocks()
    assert dry["freed_bytes"] == 0 and dry["next_age_s"] >= 0 and dry["unanswered"] == []
    status, done = pool.ask(asked, "evict", order)
    assert status == 200 and done["freed_bytes"] > 0 and blocks() <= before
    assert pool.ask(asked, "evict", {**order, "node": "nobody"})[0] == 404


def test_events_of_both_are_read_once_through_either(pool: Cluster) -> None:
    for on in (True, False):
        assert pool.ask(0, "nodes/n0/drain", {"on": on})[0] == 200
    seen: list[Any] = []
    cursor = ""
    for turn in range(1000):
        page = pool.ask(turn % 2, f"events?limit=3{cursor}")[1]  # a cursor means the same at every master
        seen += page["items"]
        cursor = f"&cursor={page['next_cursor']}"
        if not page["items"]:
            break
    names = [(event["master"], event["number"]) for event in seen]
    assert len(names) == len(set(names)) and page["unanswered"] == []
    drains = {event["master"] for event in seen if event["kind"] == "drain"}
    assert drains == {master.address for master in pool.masters}
    for master in drains:
        numbers = [number for name, number in names if name == master]
        assert numbers == sorted(numbers)


def test_a_stream_goes_on_where_it_ended_at_another_master(pool: Cluster) -> None:
    def read(asked: int, last: str) -> list[dict[str, str]]:
        request = urllib.request.Request(
            f"{pool.pages[asked]}/api/v1/events/stream?seconds=2.5",
            headers={"authorization": f"Bearer {TOKENS['admin']}", "last-event-id": last},
        )
        with urllib.request.urlopen(request, timeout=120, context=pool.trust) as answer:
            parts = answer.read().decode().split("\n\n")
        events = [part for part in parts if part.startswith("id:")]
        return [dict(line.split(": ", 1) for line in part.split("\n")) for part in events]

    begin = pool.ask(0, "events?limit=1")[1]["next_cursor"]
    whole = read(0, begin)
    assert len({event["data"] for event in whole}) == len(whole) > 4
    rest = read(1, whole[2]["id"])
    assert {event["event"] for event in rest} >= {"drain"}
    told = {event["data"] for event in rest}  # and what has happened since
    assert told >= {event["data"] for event in whole[3:]}
    assert not told & {event["data"] for event in whole[:3]}


@pytest.mark.parametrize("asked", [0])
def test_history_is_the_sum(pool: Cluster, asked: int) -> None:
    def newest() -> list[Any]:
        answers = [pool.ask(asked, "history", headers=headers)[1] for headers in ({}, OWN)]
        return [answers[0]["items"][-1], answers[1]["items"][-1], answers[0]["unanswered"]]

    blocks = pool.ask(asked, "cluster")[1]["blocks"]
    wait_until(lambda: newest()[0]["blocks"] == blocks)
    whole, own, unanswered = newest()
    assert unanswered == [] and whole["asked_blocks"] > own["asked_blocks"] > 0
    assert 0 < whole["ceiling"] <= 1
    assert len(everything(pool, asked, "history", 1)) >= 2
    assert pool.ask(asked, "slow-calls?limit=5")[1]["unanswered"] == []


def test_a_frozen_master_s_part_is_said_to_be_missing(pool: Cluster) -> None:
    frozen = pool.masters[1]
    prompt = {"hashes": [one.hex() for one in CHAINS[0]]}
    paths = (
        (f"keyspaces/{KEYSPACE}/blocks", None),
        ("query", {"keyspace": KEYSPACE}),
        ("prefixes", prompt),
        ("segments", None),
        ("history", None),
        ("events", None),
    )
    frozen.freeze()
    try:
        answers = pool.ask_all(0, paths)
    finally:
        frozen.thaw()
    for path, (status, answer) in answers.items():
        assert status == 200, path
        (missing,) = answer["unanswered"]
        assert missing["master"] == frozen.address and missing["reason"], path
