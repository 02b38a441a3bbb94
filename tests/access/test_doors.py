"""Every port: a wrong or missing token, a missing certificate, and plain text where TLS is spoken."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from support.guarded import TOKENS, Certificates
from support.processes import MasterProcess, NodeProcess
from support.waiting import soon

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import Forbidden, RpcFailed, Unauthorized
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import (
    GetStatus,
    Hello,
    LaneKeys,
    LaneRead,
    Need,
    Remove,
    Status,
    StatusReport,
    decode_from_master,
    decode_from_node,
)
from moonpool.store_client import StoreClient
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import Credentials
from moonpool.store_client.rpc.tls import ClientTls
from moonpool.store_client.transports.lane import Lane

HELLO = Hello(PROTOCOL_VERSION, "client", "test")
DOORS = ("master", "node", "lanes", "socket")


class Pool:
    """A master and a node, and every door of theirs."""

    def __init__(self, master: MasterProcess, node: NodeProcess) -> None:
        self.master = master
        self.node = node

    def knock(self, door: str, credentials: Credentials) -> None:
        """One harmless request. Raises what the door answers."""
        info = self.node.info
        if door == "lanes":
            lane = Lane(info.data_address, HELLO, soon(), credentials)
            try:
                lane.read(LaneRead(b"", b"", b""), Fragments.lists([], []), soon())
            finally:
                lane.close()
            return
        address = {
            "master": self.master.address,
            "node": info.rpc_address,
            "socket": f"unix:{info.unix_path}",
        }
        decode = decode_from_master if door == "master" else decode_from_node
        connection = RpcConnection(address[door], HELLO, decode, credentials)
        try:
            assert isinstance(connection.call(GetStatus(), soon()), StatusReport)
        finally:
            connection.close()


@pytest.fixture(scope="module")
def guarded(tokens_file: Path) -> Iterator[Pool]:
    with (
        MasterProcess(["--tokens-file", str(tokens_file)]) as master,
        NodeProcess(master, tokens_file=tokens_file, token=TOKENS["node"]) as node,
    ):
        node.credentials = Credentials(TOKENS["admin"])
        yield Pool(master, node)


@pytest.fixture(scope="module")
def sealed(certificates: Certificates) -> Iterator[Pool]:
    """Certificates on both sides, no tokens."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in certificates.mutual.items()]
    with MasterProcess(flags) as master, NodeProcess(master, **certificates.mutual) as node:
        node.credentials = Credentials(tls=ClientTls(**_tls(certificates)))
        yield Pool(master, node)


def _tls(certificates: Certificates) -> dict[str, object]:
    return {"ca": certificates.ca, "cert": certificates.cert, "key": certificates.key, "verify_host": True}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("token", ["", "wrong-token-0123456789", TOKENS["red"] + "x"])
def test_a_wrong_or_missing_token_is_refused_on_every_door(guarded: Pool, door: str, token: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        guarded.knock(door, Credentials(token))
    assert caught.value.code == -2010
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["red", "reader", "admin"])
def test_a_good_token_opens_every_door(guarded: Pool, door: str, name: str) -> None:
    guarded.knock(door, Credentials(TOKENS[name]))


def test_a_role_may_do_no_more_than_the_table_says(guarded: Pool) -> None:
    connection = RpcConnection(
        guarded.master.address, HELLO, decode_from_master, Credentials(TOKENS["reader"])
    )
    try:
        for request in (Need(b"s" * 16, 0, 1), Remove(b"k" * 16, b"")):
            with pytest.raises(Forbidden, match="role reader") as caught:
                connection.call(request, soon())
            assert caught.value.code == -2020
    finally:
        connection.close()
    guarded.knock("lanes", Credentials(TOKENS["node"]))  # nodes copy from each other
    lane = Lane(guarded.node.info.data_address, HELLO, soon(), Credentials(TOKENS["reader"]))
    try:
        with pytest.raises(Forbidden, match="role reader"):
            lane.key_texts(LaneKeys(bytes(4), bytes(8)), soon())
    finally:
        lane.close()


def test_a_client_without_a_token_misses_and_says_why(guarded: Pool) -> None:
    settings = ClientSettings(master=guarded.master.address, run_dir=guarded.node.run_dir, timeout_s=30)
    with StoreClient(settings) as client:
        with pytest.raises(Unauthorized, match="wants a token"):
            client.cluster_map()
        assert client.put("key", b"value") is Status.FAILED
        assert client.get("key") is None


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_objects_travel_with_a_token(guarded: Pool, transport: Literal["tcp", "shm"]) -> None:
    guarded.node.wait_for("master_connected", 1)
    settings = ClientSettings(
        master=guarded.master.address,
        run_dir=guarded.node.run_dir,
        token=TOKENS["red"],
        tenant="red",
        transport=transport,
    )
    with StoreClient(settings) as client:
        assert client.put(f"key over {transport}", b"value" * 1000, timeout_s=30) is Status.OK
        assert client.get(f"key over {transport}", timeout_s=30) == b"value" * 1000


def test_no_token_is_ever_said(guarded: Pool) -> None:
    for output in (guarded.master.output(), guarded.node.output()):
        assert not any(token in output for token in TOKENS.values())
        assert "wrong-token" not in output


# ------------------------------------------------------------ TLS


@pytest.mark.parametrize("door", ["master", "node", "lanes"])
def test_certificates_open_every_door(sealed: Pool, certificates: Certificates, door: str) -> None:
    sealed.knock(door, Credentials(tls=ClientTls(**_tls(certificates))))


@pytest.mark.parametrize("door", ["master", "node", "lanes"])
def test_a_client_without_a_certificate_is_refused(
    sealed: Pool, certificates: Certificates, door: str
) -> None:
    with pytest.raises(Unauthorized, match="wants a certificate"):
        sealed.knock(door, Credentials(tls=ClientTls(certificates.ca, "", "", True)))


@pytest.mark.parametrize("door", ["master", "node", "lanes"])
def test_certificates_of_strangers_are_refused_on_both_sides(
    sealed: Pool, certificates: Certificates, folder: Path, door: str
) -> None:
    stranger = Certificates(folder, "stranger")
    with pytest.raises(RpcFailed, match="certificate is refused"):
        sealed.knock(door, Credentials(tls=ClientTls(stranger.ca, "", "", True)))
    with pytest.raises((RpcFailed, Unauthorized), match="this side's certificate"):
        sealed.knock(door, Credentials(tls=ClientTls(certificates.ca, stranger.cert, stranger.key, True)))


@pytest.mark.parametrize("door", ["master", "node", "lanes"])
def test_plain_text_to_a_tls_port_is_told_so(sealed: Pool, door: str) -> None:
    with pytest.raises(Unauthorized, match="speaks TLS"):
        sealed.knock(door, Credentials())


@pytest.mark.parametrize("door", ["master", "node", "lanes"])
def test_tls_to_a_plain_port_is_explained(guarded: Pool, certificates: Certificates, door: str) -> None:
    with pytest.raises(RpcFailed, match="without TLS"):
        guarded.knock(door, Credentials(tls=ClientTls(certificates.ca, "", "", True)))


def test_a_certificate_must_name_the_address(folder: Path, certificates: Certificates) -> None:
    other = Certificates(folder, "elsewhere")
    other.renew("pool.example")
    flags = ["--tls-cert", other.cert, "--tls-key", other.key]
    with MasterProcess(flags) as master:
        for verify_host, refused in ((True, True), (False, False)):
            credentials = Credentials(tls=ClientTls(other.ca, "", "", verify_host))
            connection = RpcConnection(master.address, HELLO, decode_from_master, credentials)
            try:
                if refused:
                    with pytest.raises(RpcFailed, match=r"127\.0\.0\.1"):
                        connection.call(GetStatus(), soon())
                else:
                    connection.call(GetStatus(), soon())
            finally:
                connection.close()


@pytest.mark.parametrize("size", [1, 100_000, 1_000_000])
def test_objects_travel_over_tls(sealed: Pool, certificates: Certificates, size: int) -> None:
    sealed.node.wait_for("master_connected", 1)
    settings = ClientSettings(
        master=sealed.master.address, run_dir=sealed.node.run_dir, transport="tcp", **certificates.mutual
    )
    value = random.Random(size).randbytes(size)
    with StoreClient(settings) as client:
        assert client.put(f"{size} bytes", value, timeout_s=20) is Status.OK
        assert client.get(f"{size} bytes", timeout_s=20) == value
        assert len(client.list_objects(objects_keyspace(), timeout_s=20)) >= 1
