"""ls, inspect, pin, unpin, rm, drain and status, against a real master and node."""

from __future__ import annotations

import hashlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
from client.pool import wait_for_nodes
from support.commands import Said, moonpool
from support.processes import MasterProcess, NodeProcess
from support.waiting import at_most, wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import NotFound
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace
from moonpool.schemas.poolkey import PoolKey
from moonpool.store_client import BlockPut, Fragments, StoreClient
from moonpool.store_client.cli.failures import NOT_THERE, OK, REFUSED, UNREACHABLE, USAGE
from moonpool.store_client.cli.keys import short_key
from moonpool.store_client.mooncake.keys import KeyBook

MAIN = [sys.executable, "-m", "moonpool.store_client.cli.main"]
CHAIN = [hashlib.sha256(f"block {i}".encode()).digest() for i in range(6)]
SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="org/model-8b", shard_bytes=(4096,))
KEYSPACE = SPEC.digest()
DEEPEST = short_key(CHAIN[-1], KEYSPACE)
MOONCAKE = PoolKey("other-model", CHAIN[0], tp_rank=3).text()


class Tools:
    """The command, towards one pool."""

    def __init__(self, client: StoreClient) -> None:
        self.client = client
        self.master = client.settings.master

    def __call__(self, *words: str) -> Said:
        return moonpool(*words, "--master", self.master)

    def json(self, *words: str) -> dict[str, object]:
        done = self(*words, "--json")
        assert done.code == OK, done.err
        answer: dict[str, object] = done.json
        return answer

    def pinned(self, key: str) -> object:
        return self.json("inspect", key)["pinned"]


@pytest.fixture(scope="module")
def pool() -> Iterator[StoreClient]:
    with (
        MasterProcess() as master,
        NodeProcess(master, name="rack1") as node,
        StoreClient(ClientSettings(master=master.address, run_dir=node.run_dir, timeout_s=20)) as client,
    ):
        wait_for_nodes(client)
        yield client


def ready(pool: StoreClient) -> bool:
    try:
        return pool.describe(KEYSPACE, CHAIN[-1]).ready
    except NotFound:
        return False


@pytest.fixture
def tools(pool: StoreClient) -> Iterator[Tools]:
    """A pool that holds a chain, five objects, and one rank of what a client of Mooncake stored."""
    pool.register_keyspace(SPEC)
    memory = np.arange(len(CHAIN) * 4096, dtype=np.uint64).astype(np.uint8).reshape(len(CHAIN), 4096)
    addresses = memory.ctypes.data + np.arange(len(CHAIN), dtype=np.uint64)[:, None] * np.uint64(4096)
    source = Fragments.grid(addresses.astype(np.uint64), np.array([[4096]], np.uint64))
    pool.put_blocks([BlockPut(KEYSPACE, 0, CHAIN, 0, source)])
    pool.batch_put([f"user/{i}" for i in range(4)] + ["\x1b[31mred"], [b"x" * 100] * 5)
    place = KeyBook("default", pool.register_keyspace).groups([MOONCAKE], [0])[0]
    value = np.zeros(64, dtype=np.uint8)
    pool.put_rows(place.rows(), Fragments.lists([[value.ctypes.data]], [[64]]))
    tools = Tools(pool)
    wait_until(lambda: ready(pool))  # commits are reported a little later; a match would lease the chain
    yield tools
    for spec in pool.list_keyspaces():
        pool.clear(spec.digest())


def names(answer: dict[str, object], what: str = "keys", field: str = "key") -> list[str]:
    rows = answer[what]
    assert isinstance(rows, list)
    return [row[field] for row in rows]


def test_keyspaces_are_listed_page_by_page(tools: Tools) -> None:
    table = tools("ls").out
    assert KEYSPACE.hex()[:12] in table
    assert "org/model-8b" in table
    whole = tools.json("ls", "keyspaces")
    digests = names(whole, "keyspaces", "keyspace")
    assert digests == sorted(digests)
    assert len(digests) == 3
    (model,) = tools.json("ls", "keyspaces", "--prefix", "org/")["keyspaces"]  # type: ignore[misc]
    assert (model["blocks"], model["payload_bytes"], model["pins"]) == (6, 6 * 4096, 0)
    first = tools.json("ls", "keyspaces", "--limit", "2")
    rest = tools.json("ls", "keyspaces", "--after", str(first["after"]))
    assert names(first, "keyspaces", "keyspace") + names(rest, "keyspaces", "keyspace") == digests
    assert rest["after"] is None


def test_keys_are_listed_page_by_page(tools: Tools) -> None:
    everything = sorted(names(tools.json("ls", "keys")))
    assert everything == ["\x1b[31mred", *(f"user/{i}" for i in range(4))]
    found: list[str] = []
    after = ""
    while True:
        page = tools.json("ls", "keys", "--prefix", "user/", "--limit", "3", "--after", after)
        found += names(page)
        after = str(page["after"] or "")
        if not after:
            break
        assert len(names(page)) == 3
    assert sorted(found) == everything[1:]
    assert sorted(names(tools.json("ls", "keys", "--keyspace", KEYSPACE.hex()[:8]))) == sorted(
        short_key(block_hash, KEYSPACE) for block_hash in CHAIN
    )
    said = tools("ls", "keys", "--limit", "1")
    assert "--after" in said.err
    assert "\x1b" not in tools("ls", "keys").out, "a key's text gives a terminal no orders"


def test_a_key_of_mooncake_is_listed_and_found(tools: Tools) -> None:
    keyspace = KeyBook("default", KeyspaceSpec.digest).place(MOONCAKE).keyspace.hex()
    assert names(tools.json("ls", "keys", "--keyspace", keyspace)) == [MOONCAKE]
    found = tools.json("inspect", MOONCAKE)
    assert (found["keyspace"], found["rank"]) == (keyspace, 3)


def test_nodes_are_listed(tools: Tools) -> None:
    assert names(tools.json("ls", "nodes"), "nodes", "name") == ["rack1"]
    assert tools.json("ls", "nodes", "--prefix", "rack2")["nodes"] == []
    assert "no nodes here" in tools("ls", "nodes", "--prefix", "rack2").err


@pytest.mark.parametrize(
    "key",
    [
        DEEPEST,
        PoolKey("org/model-8b", CHAIN[-1]).text(),
        PoolKey("any name", CHAIN[-1], keyspace=KEYSPACE).text(),
    ],
)
def test_a_block_is_found_by_each_form_of_its_key(tools: Tools, key: str) -> None:
    found = tools.json("inspect", key, "--chain")
    assert (found["hash"], found["position"], found["ready"]) == (CHAIN[-1].hex(), 5, True)
    (copy,) = found["copies"]  # type: ignore[misc]
    assert (copy["node"], copy["rank"], copy["size_bytes"]) == ("rack1", 0, 4096)
    assert names(found, "chain", "hash") == [h.hex() for h in reversed(CHAIN[:-1])]
    table = tools("inspect", key, "--chain", "--limit", "2").out
    assert "rack1" in table
    assert CHAIN[4].hex() in table
    assert CHAIN[2].hex() not in table


def test_what_is_not_there(tools: Tools) -> None:
    for command in ("inspect", "pin", "unpin", "rm"):
        done = tools(command, "no such key")
        assert (done.code, done.out) == (NOT_THERE, "")
        assert "'no such key' is not in the pool" in done.err
    assert tools("inspect", short_key(bytes(32), KEYSPACE)).code == NOT_THERE
    assert tools("ls", "keys", "--keyspace", "ffff").code == USAGE
    assert tools("ls", "keys", "--after", "rubbish").code == USAGE


def test_a_text_that_names_two_rows_is_refused(tools: Tools) -> None:
    tools.client.put(DEEPEST, b"an object whose key looks like a block's")
    done = tools("inspect", DEEPEST)
    assert done.code == USAGE
    assert "one of those that it names" in done.err


def test_pins(tools: Tools) -> None:
    assert tools.json("pin", DEEPEST, "user/1", "--ttl", "2h") == {"pinned": 2, "ttl_s": 7200, "soft": False}
    assert tools.pinned(DEEPEST)
    assert 7000 < float(str(tools.json("inspect", "user/1")["pin_s"])) <= 7200
    assert "user/1" in tools("inspect", "user/1").out
    assert tools.json("unpin", DEEPEST, "user/1", "user/2") == {"unpinned": 2}
    assert not tools.pinned(DEEPEST)
    assert tools.json("pin", "user/3", "--soft", "--ttl", "5m")["pinned"] == 1
    assert float(str(tools.json("inspect", "user/3")["lease_s"])) > 200
    for words in (("--ttl", "soon"), ("--soft",), ("--soft", "--ttl", "11m")):
        assert tools("pin", "user/3", *words).code == USAGE
    assert tools("pin", DEEPEST, "--soft", "--ttl", "1m").code == USAGE, "not for blocks of chains"


def test_removing_keys(tools: Tools) -> None:
    inner = short_key(CHAIN[2], KEYSPACE)
    assert tools.json("rm", inner, "--dry-run") == {
        "removed": 4,
        "skipped": 0,
        "pending": [],
        "dry_run": True,
    }
    assert tools("inspect", DEEPEST).code == OK
    tools("pin", DEEPEST)
    done = tools("rm", inner)
    assert done.code == REFUSED
    assert "--force" in done.err
    assert tools.json("rm", inner, "user/0", "--force")["removed"] == 5
    assert tools("inspect", DEEPEST).code == NOT_THERE
    assert tools("inspect", short_key(CHAIN[1], KEYSPACE)).code == OK


def test_removing_by_prefix_and_keyspace_needs_a_yes(tools: Tools) -> None:
    done = tools("rm", "--prefix", "user/")
    assert done.code == USAGE
    assert "--yes" in done.err
    assert "would remove 4 block(s)" in tools("rm", "--prefix", "user/", "--dry-run").out
    assert tools.json("rm", "--prefix", "user/", "--yes")["removed"] == 4
    assert names(tools.json("ls", "keys")) == ["\x1b[31mred"]
    assert tools("rm", "--prefix", "user/", "--yes").code == NOT_THERE
    assert tools.json("rm", "--keyspace", KEYSPACE.hex()[:6], "--dry-run")["removed"] == 6
    assert tools.json("rm", "--keyspace", KEYSPACE.hex()[:6], "--yes")["removed"] == 6
    objects = objects_keyspace().digest().hex()
    assert tools.json("rm", "--keyspace", objects, "--prefix", "\x1b", "--yes")["removed"] == 1
    assert tools("rm").code == USAGE
    assert tools("rm", "a", "--prefix", "b").code == USAGE


def test_the_number_of_copies_is_set_and_listed(tools: Tools) -> None:
    keyspace = KEYSPACE.hex()
    assert tools.json("replicas", keyspace, "2") == {"keyspace": keyspace, "replicas": 2, "changed": True}
    try:
        (model,) = tools.json("ls", "keyspaces", "--prefix", "org/")["keyspaces"]  # type: ignore[misc]
        assert model["replicas"] == 2
        assert "it was so already" in tools("replicas", keyspace[:12], "2").out
        assert "1 to 4" in tools("replicas", keyspace, "9").err
    finally:
        assert tools.json("replicas", keyspace, "1")["changed"]


def test_warming_up(tools: Tools) -> None:
    """There is one node: nothing has room for a second copy, and nothing is ordered where one is enough."""
    assert tools.json("warm", DEEPEST, "--prefix", "--dry-run") == {
        "dry_run": True,
        "copies": 6,
        "size_bytes": 6 * 4096,
        "left_out": 0,
    }
    assert tools.json("warm", DEEPEST, "--copies", "1")["copies"] == 0
    assert tools.json("warm", "--keyspace", KEYSPACE.hex()[:6], "--node", "rack1")["copies"] == 0
    assert "6 copies (24.0 KiB) are ordered" in tools("warm", "--keyspace", KEYSPACE.hex()).out
    assert tools("warm", DEEPEST, "--node", "rack9").code == NOT_THERE
    assert tools("warm").code == USAGE


def test_draining(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = tools.json("drain", "rack1")
    assert (begun["draining"], begun["changed"], begun["moved"]) == (True, True, 0)
    assert int(str(begun["left"])) > 0
    try:
        assert "live, draining" in tools("status").out
        assert "no node takes new puts" in tools("status").err
        assert tools.json("status")["complaints"] == ["no node takes new puts"]
        assert tools.client.get("user/1") == b"x" * 100
        assert "it was so already" in tools("drain", "rack1").out
        monkeypatch.setattr("moonpool.store_client.cli.drain.STUCK_S", 0.1)
        stuck = tools("drain", "rack1", "--wait")
        assert stuck.code == REFUSED and "no space" in stuck.err
        late = tools("drain", "rack1", "--wait", "--timeout", "0")
        assert late.code in (REFUSED, UNREACHABLE)
    finally:
        assert tools.json("drain", "rack1", "--cancel")["changed"]
    assert tools.json("status")["complaints"] == []
    assert tools("drain", "rack7").code == NOT_THERE


def test_tools_contribute_no_memory(tools: Tools) -> None:
    assert tools("status", "--set", "segment_size=64MB").code == OK
    assert names(tools.json("ls", "nodes"), "nodes", "name") == ["rack1"]


def test_no_master() -> None:
    for words in (["status"], ["ls"], ["inspect", "k"], ["pin", "k"], ["rm", "k"], ["drain", "n"]):
        done = moonpool(*words, "--master", "127.0.0.1:1")
        assert (done.code, done.out) == (UNREACHABLE, "")
        assert "moonpool serve" in done.err


def test_a_frozen_master_costs_a_short_wait() -> None:
    with MasterProcess() as master:
        master.freeze()
        for words in (["ls", "keys"], ["rm", "--prefix", "a", "--yes"], ["inspect", "k"], ["drain", "n"]):
            start_s = time.monotonic()
            done = moonpool(*words, "--master", master.address, "--set", "timeout_s=2.5")
            assert (done.code, done.out) == (UNREACHABLE, "")
            assert "..." in done.err, "what is waited for"
            assert "moonpool doctor" in done.err
            assert time.monotonic() - start_s < at_most(5)
        master.thaw()


def test_keys_are_text_and_nothing_else(tools: Tools) -> None:
    tools.client.put("[red]markup[/red]", b"x")
    assert tools("inspect", "[red]markup[/red]").out.startswith("[red]markup[/red]\n")
    assert "\x1b" not in tools("inspect", "\x1b[31mred").out


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, 4), ("y", OK, 0)])
def test_a_person_is_asked(tools: Tools, answer: str, code: int, left: int) -> None:
    ours, theirs = pty.openpty()
    words = [*MAIN, "rm", "--prefix", "user/", "--master", tools.master]
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.write(ours, f"{answer}\n".encode())
        assert process.wait(120) == code
    os.close(theirs)
    assert b"remove every key that begins with 'user/'?" in os.read(ours, 4096)
    os.close(ours)
    assert len(names(tools.json("ls", "keys", "--prefix", "user/"))) == left
