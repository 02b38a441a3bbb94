"""The REST interface and a node's /metrics over TLS, with real certificates."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.guarded import ENTRIES, TOKENS, Certificates, write_tokens
from support.ports import free_ports
from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

HEADERS = {"authorization": f"Bearer {TOKENS['admin']}"}


class Pool:
    """A master and a node that have their pages at `ports`, with tokens or without."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, *, tokens: bool) -> None:
        self.certificates = Certificates(folder)
        self.ports = dict(zip(("master", "node"), free_ports(2), strict=True))
        settings = dict(self.certificates.mutual)
        if tokens:
            settings["tokens_file"] = str(write_tokens(folder / "tokens.json", ENTRIES))
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        master = stack.enter_context(MasterProcess([*flags, f"--http-port={self.ports['master']}"]))
        stack.enter_context(
            NodeProcess(
                master, **settings, token=TOKENS["node"] if tokens else "", metrics_port=self.ports["node"]
            )
        )

    def ask(
        self, kind: str, path: str, *, certificate: bool = False, headers: dict[str, str] = HEADERS
    ) -> int:
        """The status of the answer."""
        with contextlib.closing(self.connection(kind, certificate)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status

    def connection(self, kind: str, certificate: bool = False) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=self.certificates.ca)
        if certificate:
            context.load_cert_chain(self.certificates.cert, self.certificates.key)
        return http.client.HTTPSConnection("127.0.0.1", self.ports[kind], timeout=60, context=context)

    def shown(self, kind: str) -> bytes | None:
        """The certificate that a new connection gets."""
        with contextlib.closing(self.connection(kind)) as connection:
            connection.connect()
            assert isinstance(connection.sock, ssl.SSLSocket)
            return connection.sock.getpeercert(binary_form=True)


PAGES = (("master", "/api/v1/nodes"), ("master", "/metrics"), ("node", "/metrics"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with contextlib.ExitStack() as stack:
        yield Pool(stack, tmp_path_factory.mktemp("https"), tokens=True)


@pytest.mark.parametrize(("kind", "path"), PAGES)
def test_tokens_are_asked_for_and_no_certificate(guarded: Pool, kind: str, path: str) -> None:
    assert guarded.ask(kind, path) == 200
    assert guarded.ask(kind, path, headers={}) == 401


@pytest.mark.parametrize("kind", ["master", "node"])
def test_a_stranger_does_not_trust_it(guarded: Pool, kind: str) -> None:
    stranger = http.client.HTTPSConnection("127.0.0.1", guarded.ports[kind], timeout=60)
    with contextlib.closing(stranger), pytest.raises(ssl.SSLCertVerificationError):
        stranger.connect()


@pytest.mark.parametrize("kind", ["master", "node"])
def test_who_comes_without_tls_is_told_so(guarded: Pool, kind: str) -> None:
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", guarded.ports[kind], timeout=60)
    ) as plain:
        plain.request("GET", "/metrics", headers=HEADERS)
        answer = plain.getresponse()
        assert answer.status == 400
        error = json.loads(answer.read())["error"]
    assert error["name"] == "Unauthorized" and re.search("https://", error["message"])
    assert guarded.ask(kind, "/metrics") == 200


@pytest.mark.parametrize("kind", ["master", "node"])
def test_broken_handshakes_end(guarded: Pool, kind: str) -> None:
    with socket.create_connection(("127.0.0.1", guarded.ports[kind]), timeout=60) as sock:
        sock.sendall(b"\x16\x03\x01" + bytes(60))
        with contextlib.suppress(ConnectionError):
            while sock.recv(1 << 16):
                pass
    assert guarded.ask(kind, "/metrics") == 200


def test_silent_ones_hold_nobody_up(guarded: Pool) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", guarded.ports["master"]), timeout=60))
        assert guarded.ask("master", "/metrics") == 200


@pytest.mark.parametrize("kind", ["master", "node"])
def test_new_connections_get_a_renewed_certificate(guarded: Pool, kind: str) -> None:
    before = guarded.shown(kind)
    with contextlib.closing(guarded.connection(kind)) as old:
        old.connect()
        guarded.certificates.renew()
        wait_until(lambda: kind == "node" or guarded.shown(kind) != before)
        old.request("GET", "/metrics", headers=HEADERS)
        assert old.getresponse().status == 200
    wait_until(lambda: guarded.shown(kind) != before)


def test_without_tokens_a_certificate_is_all_that_lets_in(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        pool = Pool(stack, tmp_path, tokens=False)
        for kind, path in PAGES:
            assert pool.ask(kind, path, certificate=True, headers={}) == 200
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                pool.ask(kind, path, headers={})
