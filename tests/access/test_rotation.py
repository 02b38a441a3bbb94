"""Tokens and certificates change while servers run."""

from __future__ import annotations

import hashlib
import socket
import ssl
from pathlib import Path

import pytest
from support.guarded import ENTRIES, TOKENS, Certificates, write_tokens
from support.processes import MasterProcess, NodeProcess
from support.waiting import soon, wait_until

from moonpool.schemas.errors import MoonpoolError, RpcFailed, Unauthorized
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import GetStatus, Hello, LaneRead, decode_from_master
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import Credentials
from moonpool.store_client.rpc.tls import ClientTls
from moonpool.store_client.transports.lane import Lane

HELLO = Hello(PROTOCOL_VERSION, "client", "test")


def refused(connection: RpcConnection) -> bool:
    try:
        connection.call(GetStatus(), soon())
    except Unauthorized:
        return True
    except RpcFailed:
        pass  # closed, and the next call is told why
    return False


def test_a_withdrawn_token_ends_its_connections_and_no_others(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.json")
    with (
        MasterProcess([f"--tokens-file={path}"]) as master,
        NodeProcess(master, tokens_file=path, token=TOKENS["node"]) as node,
    ):
        red, blue = (
            RpcConnection(master.address, HELLO, decode_from_master, Credentials(TOKENS[name]))
            for name in ("red", "blue")
        )
        lane = Lane(node.info.data_address, HELLO, soon(), Credentials(TOKENS["red"]))
        try:
            red.call(GetStatus(), soon())
            blue.call(GetStatus(), soon())
            socket_of_blue = blue._wire
            write_tokens(path, [entry for entry in ENTRIES if entry["name"] != "red"])
            wait_until(lambda: refused(red))

            def lane_refused() -> bool:
                try:
                    lane.read(LaneRead(b"", b"", b""), Fragments.lists([], []), soon())
                except Unauthorized:
                    return True
                return False

            wait_until(lane_refused)
            blue.call(GetStatus(), soon())
            assert blue._wire is socket_of_blue
            write_tokens(path, ENTRIES)
            wait_until(lambda: not refused(red))
        finally:
            red.close()
            blue.close()
            lane.close()


def test_a_token_that_changes_its_tenant_begins_again(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.json")
    with MasterProcess([f"--tokens-file={path}"]) as master:
        connection = RpcConnection(master.address, HELLO, decode_from_master, Credentials(TOKENS["red"]))
        try:

            def tenant() -> object:
                try:
                    return getattr(connection.call(GetStatus(), soon()), "facts", {}).get("tenant")
                except MoonpoolError:
                    return None

            assert tenant() == "red"
            moved = [{**entry, "tenant": "green"} if entry["name"] == "red" else entry for entry in ENTRIES]
            write_tokens(path, moved)
            wait_until(lambda: tenant() == "green")
        finally:
            connection.close()


def test_clients_read_their_token_again_for_each_connection(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("the-first-token-1234\n")
    credentials = Credentials(token_file=str(path))
    assert credentials.sign(HELLO).token == "the-first-token-1234"
    path.write_text("the-second-token-123\n")
    assert credentials.sign(HELLO).token == "the-second-token-123"
    path.unlink()
    assert credentials.sign(HELLO).token == "the-second-token-123"


def served_certificate(address: str) -> bytes:
    """Digest of what the port shows now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as plain, context.wrap_socket(plain) as sock:
        shown = sock.getpeercert(binary_form=True)
    assert shown is not None
    return hashlib.sha256(shown).digest()


def test_new_connections_use_renewed_certificates(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in certificates.mutual.items()]
    tls = ClientTls(certificates.ca, certificates.cert, certificates.key, True)
    with MasterProcess(flags) as master, NodeProcess(master, **certificates.mutual) as node:
        old = RpcConnection(master.address, HELLO, decode_from_master, Credentials(tls=tls))
        try:
            old.call(GetStatus(), soon())
            socket_of_old = old._wire
            before = {door: served_certificate(door) for door in (master.address, node.info.data_address)}
            certificates.renew()
            for door, shown in before.items():
                wait_until(lambda door=door, shown=shown: served_certificate(door) != shown)
            old.call(GetStatus(), soon())
            assert old._wire is socket_of_old, "connections live on"
            new = RpcConnection(master.address, HELLO, decode_from_master, Credentials(tls=tls))
            try:
                new.call(GetStatus(), soon())
            finally:
                new.close()
        finally:
            old.close()


def test_a_bad_certificate_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonpool.store_client.rpc.tls.LOOK_EVERY_S", 0.0)
    certificates = Certificates(tmp_path)
    tls = ClientTls(certificates.ca, certificates.cert, certificates.key, True)
    before = tls.context()
    Path(certificates.cert).write_text("not a certificate")
    assert tls.context() is before
    certificates.renew()
    assert tls.context() is not before
