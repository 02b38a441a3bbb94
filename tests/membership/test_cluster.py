"""Masters, nodes and clients in processes of their own, over a real etcd."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from client.chains import all_ok, chained, put_chain
from support.etcd_server import EtcdServer
from support.processes import MasterProcess, NodeProcess
from support.waiting import at_most, soon, wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import MoonpoolError, Unavailable, Unreachable, WrongShard
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import (
    Drain,
    GetClusterMap,
    GetStatus,
    Hello,
    ListTenants,
    Message,
    Presence,
    RegisterKeyspace,
    Remove,
    SetTenant,
    Status,
    decode_from_master,
    decode_from_node,
)
from moonpool.schemas.packed import join_hashes, pack_u16
from moonpool.schemas.runs import shards_of
from moonpool.store_client import StoreClient
from moonpool.store_client.objects import hashes_of
from moonpool.store_client.rpc.connection import RpcConnection

pytestmark = pytest.mark.etcd

SHARDS = 6
LEASE_S = 6.0
TIMEOUT_S = 5.0
KEYS = [f"object {i}" for i in range(200)]
VALUES = [key.encode() * 50 for key in KEYS]
BLOCK = 4096
AGES_S = 1.0
"""Masters compare ages by so much."""


class Cluster:
    """Three masters over etcd, two nodes, and a client."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.etcd = stack.enter_context(EtcdServer(folder))
        self.flags = ["--store", f"etcd://{self.etcd.endpoint}", "--shards", str(SHARDS)]
        self.flags += ["--lease-s", str(LEASE_S), "--log-every-s", "0.5", "--lost-after-s", "5"]
        self.masters = [stack.enter_context(MasterProcess(self.flags)) for _ in range(3)]
        self.address = ",".join(master.address for master in self.masters)
        self.nodes = [
            stack.enter_context(
                NodeProcess(self.masters[i].address, name=f"n{i}", prefault=False, begin_wait_s=5)
            )
            for i in range(2)
        ]  # each knows of one master only, and finds the others
        self.client = stack.enter_context(
            StoreClient(ClientSettings(master=self.address, timeout_s=TIMEOUT_S))
        )

    def settled(self, masters: int = 3) -> None:
        """Waits until that many masters share all shards, and know both nodes and all that they hold."""

        def shared() -> bool:
            cluster = self.client.cluster_map()
            return len(cluster.masters) == masters == len(set(cluster.owners)) and -1 not in cluster.owners

        wait_until(shared)
        wait_until(lambda: sum(entry.state == 1 for entry in self.client.cluster_map().nodes) == 2)

    def fill(self) -> None:
        """Puts what isn't there. Nothing that was acknowledged is dropped, and nothing is said to be there that isn't.
        The client's breaker may wait a second before it asks a master again that was away (FAILED), and that one until
        the nodes have found it (NO_SPACE)."""

        def reached_all() -> bool:
            statuses = self.client.batch_put(KEYS, VALUES)
            assert set(statuses) <= {Status.OK, Status.EXISTS, Status.FAILED, Status.NO_SPACE}
            return set(statuses) <= {Status.OK, Status.EXISTS}

        wait_until(reached_all)
        assert self.client.batch_get(KEYS) == VALUES

    def all_there(self) -> None:
        wait_until(lambda: self.client.batch_get(KEYS) == VALUES)

    def ask(self, master: MasterProcess, message: Message, timeout_s: float = 30.0) -> Message:
        """Straight to one master, as a client that knows no map."""
        connection = RpcConnection(master.address, Hello(PROTOCOL_VERSION, "client", "t"), decode_from_master)
        try:
            return connection.call(message, time.monotonic() + timeout_s)
        finally:
            connection.close()

    def logged(self) -> bool:
        """Whether all logs are as new as the index."""
        facts = [self.ask(master, GetStatus()).facts for master in self.masters]  # type: ignore[attr-defined]
        return all(one["log_shards_unwritten"] == one["log_records_behind"] == 0 for one in facts)

    def copies(self) -> int:
        """Of all masters together."""
        return sum(
            int(self.ask(master, GetStatus()).facts["copies"])  # type: ignore[attr-defined]
            for master in self.masters
            if master.alive
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        made = Cluster(stack, tmp_path_factory.mktemp("etcd"))
        try:
            made.settled()
            made.fill()
        except BaseException:
            print(*(process.output() for process in (*made.masters, *made.nodes)), sep="\n=====\n")
            raise
        yield made


def test_requests_go_to_whom_they_concern(cluster: Cluster) -> None:
    there = cluster.client.cluster_map()
    assert there.shards == SHARDS and sorted(map(there.owners.count, range(3))) == [2, 2, 2]
    keyspace = cluster.client.register_keyspace(chained("cluster", BLOCK))
    hashes = [hashlib.sha256(f"chain {i}".encode()).digest() for i in range(600)]
    assert all_ok(put_chain(cluster.client, keyspace, hashes, BLOCK))
    wait_until(lambda: cluster.client.match(keyspace, hashes) == 600)
    assert cluster.client.renew(keyspace, hashes) == [True] * 3
    assert cluster.client.remove(keyspace, hashes[300:301], force=True).count >= 1
    assert cluster.client.match(keyspace, hashes) == 300
    cluster.client.clear(keyspace)
    assert cluster.client.match(keyspace, hashes) == 0


def test_any_master_and_etcd_itself_tell_who_there_is(cluster: Cluster) -> None:
    there = cluster.client.cluster_map()
    for master in cluster.masters:
        told = cluster.ask(master, GetClusterMap())
        assert (told.masters, told.owners) == (there.masters, there.owners)  # type: ignore[attr-defined]
    ways = [cluster.masters[1].address, f"127.0.0.1:1,{cluster.masters[2].address}"]
    ways += [f"etcd://127.0.0.1:1;{cluster.etcd.endpoint}", f"etcd://{cluster.etcd.endpoint}/default"]
    for master in ways:
        with StoreClient(ClientSettings(master=master, timeout_s=20)) as client:
            assert client.batch_get(KEYS) == VALUES, master
    with StoreClient(ClientSettings(master=f"etcd://{cluster.etcd.endpoint}/other")) as client:
        assert client.batch_get(KEYS[:3]) == [None] * 3
        with pytest.raises(Unreachable):
            client.cluster_map()


def test_what_one_master_records_all_know_and_keep(cluster: Cluster) -> None:
    def quotas(master: MasterProcess) -> dict[str, int] | None:
        try:
            told = cluster.ask(master, ListTenants()).tenants  # type: ignore[attr-defined]
        except Unavailable:  # it has no lease yet
            return None
        return {one.tenant: one.quota_bytes for one in told if one.quota_bytes}

    cluster.ask(cluster.masters[0], SetTenant("red", 5 << 30))
    cluster.ask(cluster.masters[0], Drain("n0", True))
    for master in cluster.masters:
        wait_until(lambda master=master: quotas(master) == {"red": 5 << 30})  # type: ignore[misc]
        wait_until(lambda master=master: draining(cluster, master) == {"n0"})  # type: ignore[misc]
    cluster.ask(cluster.masters[1], Drain("n0", False))
    victim = cluster.masters[2]
    victim.kill()
    cluster.ask(cluster.masters[0], SetTenant("red", 6 << 30))
    victim.start()
    answers: list[dict[str, int]] = []
    wait_until(
        lambda: answers.extend(one for one in [quotas(victim)] if one is not None) or bool(answers), 30
    )
    assert answers == [{"red": 6 << 30}], "the first thing that it says"
    for master in cluster.masters:
        wait_until(lambda master=master: not draining(cluster, master))  # type: ignore[misc]
    cluster.settled()
    cluster.all_there()


def draining(cluster: Cluster, master: MasterProcess) -> set[str]:
    """Nodes that get no new puts, as that master says."""
    nodes = cluster.ask(master, GetClusterMap()).nodes  # type: ignore[attr-defined]
    return {entry.info.node for entry in nodes if entry.draining}


def test_a_node_finds_the_masters_in_etcd(cluster: Cluster) -> None:
    with NodeProcess(f"etcd://{cluster.etcd.endpoint}", name="late", prefault=False) as node:
        wait_until(lambda: node_facts(node)["master_connected"] == 3)
    wait_until(lambda: sum(entry.state == 1 for entry in cluster.client.cluster_map().nodes) == 2)


def test_a_master_refuses_what_is_not_its_own_and_says_as_of_when(cluster: Cluster) -> None:
    spec = objects_keyspace()
    hashes = hashes_of(KEYS)
    shards = pack_u16(shards_of(spec.digest(), join_hashes(hashes), 16, SHARDS))
    for master in cluster.masters:
        cluster.ask(master, RegisterKeyspace(spec))
        with pytest.raises(WrongShard, match=r"epoch [1-9]"):
            cluster.ask(master, Presence(spec.digest(), join_hashes(hashes), 0, shards=shards))
        with pytest.raises(WrongShard):
            cluster.ask(master, Remove(spec.digest(), join_hashes(hashes), True, shards=shards))
    assert cluster.client.batch_is_exist(KEYS) == [True] * len(KEYS), "and nothing was removed"


def test_a_master_with_other_settings_does_not_start(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "moonpool.master", "--port", "0", *cluster.flags, "--shards", "7"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "was made with 6" in ended.stderr


def test_sigterm_hands_over_without_losing_an_entry(cluster: Cluster) -> None:
    before = cluster.copies()
    leaving = cluster.masters[0]
    start_s = time.monotonic()
    os.kill(leaving.pid, signal.SIGTERM)
    wait_until(lambda: not leaving.alive)
    took_s = time.monotonic() - start_s
    cluster.settled(2)
    wait_until(lambda: cluster.copies() == before)
    cluster.all_there()  # not at once: its breaker may wait a second before it asks that address again
    assert took_s < LEASE_S, "less than the lease: it was given away, not waited for"
    assert "is given away" in leaving.output()
    leaving.start()
    cluster.settled()
    wait_until(lambda: cluster.copies() == before)
    cluster.all_there()  # not at once: its breaker may wait a second before it asks that address again


def test_a_killed_master_is_replaced_within_its_lease(cluster: Cluster) -> None:
    """What it has acknowledged holds: removed objects, which its entry log still names, are not back for a moment."""
    wait_until(lambda: cluster.logged())
    gone, kept = KEYS[::4], [key for i, key in enumerate(KEYS) if i % 4]
    values = [key.encode() * 50 for key in kept]
    removed = cluster.client.batch_remove(gone, force=True)
    assert (removed.count, removed.pending) == (len(gone), [])
    before = cluster.copies()
    victim = cluster.masters[1]
    victim.kill()
    start_s = time.monotonic()
    slowest_s = 0.0
    while cluster.client.batch_get(kept) != values:
        called_s = time.monotonic()
        assert not any(cluster.client.batch_is_exist(gone)), "a take-over has undone a removal"
        slowest_s = max(slowest_s, time.monotonic() - called_s)
        assert time.monotonic() < start_s + 60
        time.sleep(0.05)
    assert time.monotonic() - start_s < at_most(LEASE_S), (
        "etcd looks at leases twice a second; the rest is this machine"
    )
    assert slowest_s < at_most(TIMEOUT_S), "calls keep to their deadline meanwhile"
    wait_until(lambda: cluster.copies() == before)
    assert not any(cluster.client.batch_is_exist(gone))
    victim.start()
    cluster.settled()
    assert not any(cluster.client.batch_is_exist(gone))
    cluster.fill()


def test_a_master_that_was_stopped_past_its_lease_answers_nothing_stale(cluster: Cluster) -> None:
    """It wakes up with requests in its sockets, and believes that it owns what others have taken over since."""
    deposed = cluster.masters[2]
    hello = Hello(PROTOCOL_VERSION, "client", "t")
    connection = RpcConnection(deposed.address, hello, decode_from_master)
    owned = connection.call(GetStatus(), soon()).facts["shards_owned"]  # type: ignore[attr-defined]
    assert owned == 2
    spec, hashes = objects_keyspace(), hashes_of(KEYS)
    connection.call(RegisterKeyspace(spec), soon())
    deposed.freeze()
    try:
        cluster.settled(2)
        cluster.all_there()
        removed = cluster.client.batch_remove(KEYS, force=True)
        assert removed.count == len(KEYS) and removed.pending == []
        # Without `shards` it would answer from all that it has.
        waiting = Presence(spec.digest(), join_hashes(hashes), 0)
        connection.begin(waiting, soon())
    finally:
        deposed.thaw()
    with pytest.raises(MoonpoolError) as refusal:  # or it said that removed objects are there
        connection.finish(waiting, soon())
    assert connection.is_open, f"it has answered: {refusal.value}"
    connection.close()
    cluster.settled()
    assert not any(cluster.client.batch_is_exist(KEYS))
    assert "fenced" in deposed.output()
    stale = sum(int(node_facts(node)["stale_pushes"]) for node in cluster.nodes)
    assert stale == 0, "it has not even tried to direct a node"
    cluster.fill()


def node_facts(node: NodeProcess) -> dict[str, int | float | str]:
    """What a node says of itself."""
    hello = Hello(PROTOCOL_VERSION, "client", "t")
    connection = RpcConnection(node.address, hello, decode_from_node)
    try:
        reply = connection.call(GetStatus(), soon())
        return reply.facts  # type: ignore[attr-defined,no-any-return]
    except MoonpoolError:
        return {"stale_pushes": 0}
    finally:
        connection.close()


def test_room_is_made_over_all_masters_oldest_first(cluster: Cluster) -> None:
    """The last test here: it evicts what the others have put."""
    cluster.settled()

    def put(keys: list[str]) -> None:
        for first in range(0, len(keys), 15):
            part = keys[first : first + 15]
            assert cluster.client.batch_put(part, [b"x" * 400_000] * len(part)) == [Status.OK] * len(part)

    old, young = [f"old {i}" for i in range(300)], [f"young {i}" for i in range(90)]
    put(old)  # with the others 156 MB, on two nodes of 64 MiB
    time.sleep(2 * AGES_S)
    put(young)
    # A master that had to make all room by itself would have to give up its young ones, when its old ones are gone.
    assert all(cluster.client.batch_is_exist(young)), "one gives up young ones while another has old ones"
    assert sum(cluster.client.batch_is_exist(old)) < 250
