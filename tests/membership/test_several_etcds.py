"""Masters, a node and clients over an etcd of three members that is closed: certificates, a user and a password."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme
from client.chains import chained
from support.etcd_members import EtcdMembers
from support.etcd_server import PASSWORD
from support.processes import MasterProcess, NodeProcess
from support.waiting import at_most, soon, wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import ConfigError, MoonpoolError, RpcFailed, Unauthorized, Unreachable
from moonpool.schemas.messages import Status
from moonpool.store_client import StoreClient
from moonpool.store_client.directory import Directory

pytestmark = pytest.mark.etcd

SHARDS = 4
LEASE_S = 7
KEYS = [f"object {i}" for i in range(40)]
VALUES = [key.encode() * 30 for key in KEYS]


class Closed:
    """The etcd, two masters, a node that finds them there, and a client that does."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        authority = trustme.CA()
        mine = authority.issue_cert("127.0.0.1", "localhost")
        ca, cert, key, self.password = (folder / name for name in ("ca", "cert", "key", "password"))
        authority.cert_pem.write_to_path(ca)
        mine.cert_chain_pems[0].write_to_path(cert)
        mine.private_key_pem.write_to_path(key)
        for secret in (self.password, key):
            secret.touch(0o600)
            secret.chmod(0o600)
        self.password.write_text(PASSWORD + "\n")
        self.login = {"etcd_ca": str(ca), "etcd_cert": str(cert), "etcd_key": str(key)}
        self.login |= {"etcd_user": "moonpool", "etcd_password_file": str(self.password)}
        self.etcd = stack.enter_context(EtcdMembers(folder, 3, tls=(ca, cert, key)))
        self.etcd.members[0].enable_auth()
        for member in self.etcd.members[1:]:
            member.token = self.etcd.members[0].token
        where = f"etcd://{self.etcd.endpoints}"
        flags = ["--store", where, "--shards", str(SHARDS), "--lease-s", str(LEASE_S)]
        flags += [f"--{name.replace('_', '-')}={value}" for name, value in self.login.items()]
        self.masters = [stack.enter_context(MasterProcess(flags)) for _ in range(2)]
        self.node = stack.enter_context(NodeProcess(where, name="n0", prefault=False, **self.login))
        self.settings = ClientSettings.model_validate({"master": where, "timeout_s": 10, **self.login})
        self.client = stack.enter_context(StoreClient(self.settings))

    def shared(self) -> bool:
        """Two masters have all shards, and the node is live."""
        try:
            there = self.client.cluster_map()
        except MoonpoolError:
            return False
        live = [entry.info.node for entry in there.nodes if entry.state == 1]
        return len(set(there.owners)) == 2 and -1 not in there.owners and "n0" in live

    def recorded(self) -> bool:
        """Whether what must be in the store before it is acknowledged is acknowledged."""
        try:
            return bool(self.client.register_keyspace(chained("late", 4096)))
        except MoonpoolError as error:  # etcd chooses a leader, or its answer was lost
            assert isinstance(error, RpcFailed | Unreachable), error
            return False

    def put(self, prefix: str) -> None:
        """Some objects, as soon as all masters are reached."""
        keys = [f"{prefix} {key}" for key in KEYS]

        def reached() -> bool:
            statuses = self.client.batch_put(keys, VALUES)
            return set(statuses) <= {Status.OK, Status.EXISTS} and self.client.batch_get(keys) == VALUES

        wait_until(reached)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    with ExitStack() as stack:
        made = Closed(stack, tmp_path_factory.mktemp("closed"))
        try:
            wait_until(made.shared)
        except BaseException:
            print(*(one.output() for one in (*made.masters, made.node)), sep="\n=====\n")
            raise
        yield made


def test_masters_are_found_by_whoever_may_read_them(closed: Closed, tmp_path: Path) -> None:
    found = Directory.of(closed.settings).find(soon())
    assert found == sorted(master.address for master in closed.masters)
    closed.put("first")

    def refusal(**changed: str) -> Exception:
        settings = closed.settings.model_copy(update=changed)
        with pytest.raises(MoonpoolError) as raised:
            Directory.of(settings).find(soon())
        assert PASSWORD not in str(raised.value) and PASSWORD not in repr(settings)
        return raised.value

    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_text("wrong")
    assert isinstance(refusal(etcd_password_file=str(wrong)), Unauthorized)
    assert isinstance(refusal(etcd_user="", etcd_password_file=""), Unauthorized)
    assert isinstance(refusal(etcd_cert="", etcd_key=""), RpcFailed), "etcd wants a certificate"
    assert isinstance(refusal(etcd_password_file=""), ConfigError)
    assert isinstance(refusal(etcd_ca=""), ConfigError), "a certificate, and nobody to check etcd's by"
    wrong.chmod(0o644)
    assert isinstance(refusal(etcd_password_file=str(wrong)), ConfigError), "others can read it"


def test_a_forgotten_token_is_fetched_again(closed: Closed) -> None:
    directory = Directory.of(closed.settings)
    found = directory.find(soon())
    directory._etcd._token = "forgotten.1"
    assert directory.find(soon()) == found


def test_a_dead_member_stops_nobody(closed: Closed) -> None:
    """The leader at that: for a moment nobody can write."""
    victim = closed.etcd.leader()
    before = closed.client.cluster_map()
    victim.kill()
    try:
        start_s = time.monotonic()
        wait_until(closed.recorded)
        took_s = time.monotonic() - start_s
        closed.put("meanwhile")
        with StoreClient(closed.settings) as late:
            wait_until(lambda: late.batch_get([f"meanwhile {key}" for key in KEYS]) == VALUES)
        with NodeProcess(closed.settings.master, name="late", prefault=False, **closed.login) as node:
            wait_until(lambda: node.status()["master_connected"] == 2)
        time.sleep(LEASE_S + 0.5)  # longer than a lease
        assert took_s < at_most(3)
        assert closed.shared()
        assert closed.client.cluster_map().masters == before.masters, "no master lost its lease"
    finally:
        victim.start()
    assert not any("fenced:" in master.output() for master in closed.masters)
