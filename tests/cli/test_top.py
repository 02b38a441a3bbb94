"""`moonpool top`: its numbers, its output in pipes, and its screen on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest
from support.commands import moonpool
from support.node_info import node_info
from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import ClusterMap, KeyspaceFacts, NodeEntry, NodeInfo, NodeState, Status
from moonpool.store_client import StoreClient
from moonpool.store_client.cli.failures import OK, UNREACHABLE
from moonpool.store_client.cli.top import screen
from moonpool.store_client.cli.top_view import Sample, document, node_rows, rate, summary

MAIN = [sys.executable, "-m", "moonpool.store_client.cli.main"]


def info(name: str) -> NodeInfo:
    return node_info(name, segment=name.encode(), capacity_bytes=1000, page_bytes=1)


def sample(at_s: float, hit: int, read: int, nodes: int = 2, requests: int = 0) -> Sample:
    entries = [NodeEntry(info(f"n{i}"), NodeState.LIVE, 250 * i) for i in range(nodes)]
    master = {
        "asked_blocks": 100 * at_s,
        "hit_blocks": hit,
        "capacity_bytes": 2000,
        "free_bytes": 500,
        "rows": 7,
    }
    facts = {b"n0": {"tcp_bytes_read": read, "local_bytes": 9 * read, "pull_bytes": read, "objects": 3}}
    keyspaces = ((objects_keyspace(), KeyspaceFacts(7, 7, 700, 0, requests, 10, 5)),)
    return Sample(at_s, ClusterMap(1, 1, ["m"], entries), master, facts, keyspaces)


def test_rates_are_between_two_looks() -> None:
    found = document(sample(12.0, 150, 5000, requests=40), sample(10.0, 50, 1000, requests=20))
    assert (found["asked_blocks_s"], found["hit_ratio"], found["hit_ratio_total"]) == (100.0, 0.5, 0.125)
    assert (found["read_bytes_s"], found["written_bytes_s"]) == (2000.0, 20_000.0)
    assert (found["used_bytes"], found["blocks"]) == (1500, 7)
    (keyspace,) = found["keyspaces"]
    assert (keyspace["requests_s"], keyspace["hit_ratio_total"]) == (10.0, 0.5)
    assert [row[0] for row in node_rows(found)] == ["n0", "n1"], "fullest first"
    assert "not reached" in node_rows(found)[1][1]
    assert dict(summary(found))["hits"] == "50.0% now, 12.5% in all; 100 blocks asked/s"


def test_a_tenant_sees_no_shares_of_nodes() -> None:
    entry = NodeEntry(info("n0"), NodeState.LIVE, -1)
    look = Sample(1.0, ClusterMap(1, 1, ["m"], [entry]), {}, {}, ())
    found = document(look, look)
    assert found["nodes"][0]["used_bytes"] is None
    assert node_rows(found)[0][2] == "-"


@pytest.mark.parametrize(("quota_bytes", "text"), [(0, "3.0 KiB"), (12 << 10, "3.0 KiB of 12.0 KiB (25.0%)")])
def test_a_tenant_sees_what_it_uses_of_its_quota(quota_bytes: int, text: str) -> None:
    facts = {"tenant": "a", "quota_bytes": quota_bytes, "used_bytes": 3 << 10}
    look = Sample(1.0, ClusterMap(1, 1, ["m"], []), facts, {}, ())
    assert dict(summary(document(look, look)))["used"] == text


def test_a_server_that_began_anew_gives_no_rate() -> None:
    assert rate(5, 1000, 1.0) == 0
    assert rate(5, 1, 0.0) == 0
    quiet = document(sample(10.0, 0, 0), sample(10.0, 0, 0))
    assert quiet["hit_ratio"] is None


def test_the_screen_holds_what_there_is_room_for() -> None:
    found = document(sample(2.0, 1, 1, nodes=500), sample(1.0, 0, 0, nodes=500))
    for lines in (5, 24, 60):
        nodes = screen(found, lines)[1]
        assert 1 <= nodes.row_count <= lines  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def master() -> Iterator[str]:
    with MasterProcess() as master, NodeProcess(master, name="rack1") as node:
        settings = ClientSettings(master=master.address, run_dir=node.run_dir, timeout_s=20)
        with StoreClient(settings) as client:
            wait_until(lambda: client.put("key", b"value" * 1000) in (Status.OK, Status.EXISTS))
        yield master.address


def test_once(master: str) -> None:
    said = moonpool("top", "--master", master, "--once", "--interval", "0.2")
    assert said.code == OK, said.err
    assert "rack1" in said.out
    assert "objects" in said.out
    assert "\x1b" not in said.out
    found = moonpool("top", "--master", master, "--once", "--interval", "0.2", "--json").json
    (node,) = found["nodes"]
    assert (node["name"], node["objects"], node["reachable"]) == ("rack1", 1, True)


def test_nobody_there() -> None:
    assert moonpool("top", "--master", "127.0.0.1:1").code == UNREACHABLE


def read_until(descriptor: int, text: bytes) -> bytes:
    seen = b""
    end_s = time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < end_s, seen
        if select.select([descriptor], [], [], 1.0)[0]:
            seen += os.read(descriptor, 65536)
    return seen


@pytest.mark.parametrize("key", ["q", "Ctrl-C"])
def test_on_a_terminal_until_a_key(master: str, key: str) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 70, 0, 0))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [*MAIN, "top", "--master", master, "--interval", "0.2"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
        start_new_session=True,
    )
    try:
        shown = read_until(ours, b"rack1")
        assert b"\x1b[?1049h" in shown, "a screen of its own"
        if key == "q":
            os.write(ours, b"q")
        else:  # by hand: the terminal isn't its controlling one, and would throw away on \x03 what was just written
            process.send_signal(signal.SIGINT)
        read_until(ours, b"\x1b[?1049l")
        assert process.wait(60) == 0
        assert termios.tcgetattr(theirs) == before, "the terminal is as it was"
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
