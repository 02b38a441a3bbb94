"""The doctor's checks of servers: real ones, and ones that answer as real ones of another time would."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import Said, moonpool
from support.etcd_server import EtcdServer
from support.guarded import TOKENS, write_tokens
from support.node_info import node_info
from support.processes import MasterProcess, NodeProcess
from support.scripted_server import ScriptedServer
from support.waiting import wait_until

import moonpool as package
from moonpool.schemas.errors import VersionMismatch
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    ClusterMap,
    Failed,
    GetClusterMap,
    GetStatus,
    Hello,
    Keyspaces,
    Message,
    NodeEntry,
    NodeState,
    StatusReport,
    Welcome,
)
from moonpool.store_client.cli.failures import FAILED, OK, USAGE
from moonpool.store_client.doctor.bandwidth import Rate, TokenSize, judge, token_sizes
from moonpool.store_client.doctor.findings import CHECKS, Level
from moonpool.store_client.doctor.pool_checks import check_clocks, check_nodes
from moonpool.store_client.doctor.pool_probe import ServerFacts


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[MasterProcess, NodeProcess]]:
    with MasterProcess() as master, NodeProcess(master, name="rack1") as node:
        wait_until(lambda: "live" in moonpool("ls", "nodes", "--master", master.address).out)
        yield master, node


def doctor(*words: str) -> Said:
    """Whatever else runs on this host has nothing to do with it."""
    return moonpool("doctor", *words, "--set", "size=1MB", "--set", "port=0", "--json")


def levels(said: Said) -> dict[str, str]:
    """The worst of each check."""
    order = [level.value for level in (Level.OK, Level.WARNING, Level.BROKEN)]
    found: dict[str, str] = {}
    for one in said.json["findings"]:
        assert one["check"] in CHECKS
        found[one["check"]] = max(found.get(one["check"], "ok"), one["level"], key=order.index)
    return found


def test_a_pool_that_is_well(servers: tuple[MasterProcess, NodeProcess]) -> None:
    master, node = servers
    said = doctor("--master", master.address, "--prefill-rate", "1")
    assert said.code == OK, said.out
    assert all(levels(said)[name] == "ok" for name in ("master", "versions", "clock", "nodes", "bandwidth"))
    (rate,) = [one["what"] for one in said.json["findings"] if one["check"] == "bandwidth"]
    assert "sharing pays: rack1 over shm" in rate
    text = moonpool(
        "doctor", "--master", master.address, "--no-bandwidth", "--set", "size=1MB", "--set", "port=0"
    )
    assert "0 broken" in text.out
    assert "bandwidth" not in text.out
    assert node.status()["objects"] == 0, "what was written for the measurement is removed"


def test_bandwidth_over_tcp(servers: tuple[MasterProcess, NodeProcess]) -> None:
    said = doctor("--master", servers[0].address, "--set", "transport=tcp", "--prefill-rate", "1e15")
    assert said.code == OK, "a warning is no failure"
    assert levels(said)["bandwidth"] == "warning"
    assert any("does not pay: rack1 over tcp" in one["what"] for one in said.json["findings"])


def test_master_unreachable() -> None:
    said = doctor("--master", "127.0.0.1:1")
    assert said.code == FAILED
    assert levels(said)["master"] == "broken"
    assert doctor("--host-only", "--master", "127.0.0.1:1").code == OK


@pytest.mark.etcd
def test_masters_that_etcd_knows(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as etcd:
        master = f"etcd://{etcd.endpoint}"
        said = doctor("--master", master)
        assert (said.code, levels(said)["master"]) == (FAILED, "broken")
        assert "knows of no master" in said.out
        with MasterProcess(["--store", master]) as one, NodeProcess(one.address):
            wait_until(lambda: "live" in moonpool("ls", "nodes", "--master", master).out)
            said = doctor("--master", master, "--no-bandwidth")
            assert said.code == OK, said.out
            assert f"the master at {one.address} answers" in said.out
        etcd.kill()
        said = doctor("--master", master)
        assert (said.code, levels(said)["master"]) == (FAILED, "broken")
        assert "can't be asked for" in said.out


def test_port_taken(servers: tuple[MasterProcess, NodeProcess]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.settimeout(60)
        port = taken.getsockname()[1]
        said = moonpool("doctor", "--host-only", "--set", "size=1MB", "--set", f"port={port}", "--json")
    assert said.code == FAILED
    assert levels(said)["ports"] == "broken"
    port = int(servers[0].address.rpartition(":")[2])
    said = moonpool("doctor", "--host-only", "--set", "size=1MB", "--set", f"port={port}", "--json")
    assert levels(said)["ports"] == "ok"
    assert "taken by a master of ours" in said.out


def test_a_pool_that_wants_a_token(tmp_path: Path) -> None:
    file = write_tokens(tmp_path / "tokens.json")
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(TOKENS["admin"])
    with (
        MasterProcess([f"--tokens-file={file}"]) as master,
        NodeProcess(master, token=TOKENS["node"], tokens_file=str(file)),
    ):
        said = doctor("--master", master.address)
        assert levels(said)["master"] == "broken"
        assert "set token_file" in said.out
        admin = ["--master", master.address, "--set", f"token_file={token}"]
        wait_until(lambda: "live" in moonpool("ls", "nodes", *admin).out)
        said = doctor(*admin, "--prefill-rate", "1")
        assert said.code == OK, said.out
        assert levels(said)["bandwidth"] == "ok"
    missing = doctor("--set", f"token_file={tmp_path}/nothing")
    assert missing.code == FAILED
    assert levels(missing)["config"] == "broken"


def scripted(welcome: Callable[[], Message]) -> Callable[[Message], Message]:
    def answer(message: Message) -> Message:
        if isinstance(message, Hello):
            return welcome()
        if isinstance(message, GetStatus):
            return StatusReport({})
        return ClusterMap(1, 1, ["m"], []) if isinstance(message, GetClusterMap) else Keyspaces([])

    return answer


def welcome(version: str = package.__version__, apart_s: float = 0.0) -> Callable[[], Message]:
    return lambda: Welcome(
        PROTOCOL_VERSION, "master", 1, 1 << 20, version, round((time.time() + apart_s) * 1000)
    )


@pytest.mark.parametrize(("apart_s", "level"), [(0.0, "ok"), (30.0, "warning"), (-3600.0, "broken")])
def test_clocks_apart(apart_s: float, level: str) -> None:
    with ScriptedServer(scripted(welcome(apart_s=apart_s))) as server:
        said = doctor("--master", server.address)
    assert levels(said)["clock"] == level
    assert levels(said)["nodes"] == "broken", "a pool without a node"


def test_a_slow_way_makes_no_clock_wrong() -> None:
    facts = ServerFacts("m", "a:1", Welcome(1, "master", 1, 1, "", 1), offset_s=2.5, slack_s=2.0)
    assert check_clocks([facts])[0].level is Level.OK
    assert check_clocks([replace(facts, slack_s=0.1)])[0].level is Level.WARNING


def test_protocol_versions_apart() -> None:
    error = VersionMismatch(ours=7, theirs=PROTOCOL_VERSION)
    with ScriptedServer(scripted(lambda: Failed(error.code, str(error)))) as server:
        said = doctor("--master", server.address)
    assert said.code == FAILED
    assert levels(said)["versions"] == "broken"
    assert levels(said)["master"] == "ok"


def test_versions_apart() -> None:
    with ScriptedServer(scripted(welcome(version="9.9"))) as server:
        said = doctor("--master", server.address)
    assert levels(said)["versions"] == "warning"


def test_a_node_that_is_gone_or_out_of_reach(servers: tuple[MasterProcess, NodeProcess]) -> None:
    master, _ = servers
    with NodeProcess(master, name="rack2", advertise="192.0.2.1") as second:
        wait_until(lambda: "rack2" in moonpool("ls", "nodes", "--master", master.address).out)
        said = doctor("--master", master.address, "--no-bandwidth")
        assert levels(said)["nodes"] == "broken"
        assert "set advertise" in said.out
        second.kill()
        seen: list[Said] = []

        def is_suspect() -> bool:
            seen.append(doctor("--master", master.address, "--no-bandwidth"))
            return "suspect" in seen[-1].out

        wait_until(is_suspect)
    assert seen[-1].code == FAILED


def test_an_unknown_setting_on_the_command_line() -> None:
    said = moonpool("doctor", "--set", "sise=1MB")
    assert said.code == USAGE
    assert "did you mean size?" in said.err


def test_the_rule_of_bandwidth() -> None:
    size = TokenSize("org/model", 100_000)
    fast, slow, dead = Rate("a", "tcp", 1.1e9), Rate("b", "tcp", 0.9e9), Rate("c", "tcp", failure="timed out")
    found = judge([fast, slow, dead], [size], 10_000, given=True)
    assert [one.level for one in found] == [Level.OK, Level.WARNING, Level.WARNING]
    assert "11,000 tokens/s of org/model" in found[0].what
    assert "assumed" not in found[0].what
    assert "assumed" in judge([fast], [], 10_000, given=False)[0].what


def test_bytes_of_a_token_come_from_the_pools_keyspaces() -> None:
    def spec(name: str, group: str, shard_bytes: tuple[int, ...], weights: str = "w") -> KeyspaceSpec:
        identity = (("group", group), ("weights", weights))
        return KeyspaceSpec(
            kind=Kind.CHAINED, name=name, shard_bytes=shard_bytes, block_tokens=16, identity=identity
        )

    specs = [
        spec("small", "0", (1600,)),
        spec("large", "0", (16_000, 16_000)),
        spec("large", "1", (1600, 1600)),
    ]
    flat = KeyspaceSpec(kind=Kind.FLAT, name="objects", shard_bytes=(0,))
    assert token_sizes([*specs, flat]) == [TokenSize("large", 2200.0), TokenSize("small", 100.0)]


def test_nodes_of_one_name_are_a_warning() -> None:
    entries = [
        NodeEntry(node_info("node", segment=bytes([i])), state, 0)
        for i, state in enumerate([NodeState.LIVE, NodeState.LIVE, NodeState.LOST])
    ]
    (found,) = [one for one in check_nodes(entries[:2], SERVERS[:2]) if one.level is Level.WARNING]
    assert "2 nodes are named 'node'" in found.what
    assert all("are named" not in one.what for one in check_nodes(entries[1:], SERVERS[:2]))


SERVERS = [ServerFacts(f"node {i}", "") for i in range(2)]
