"""Strangers at the door: half-open handshakes, garbage, slow ones. Others are served, and memory stays flat."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.guarded import Certificates
from support.processes import MasterProcess, NodeProcess, ServerProcess
from support.soak import SOAK
from support.waiting import soon, wait_until

from moonpool.schemas.errors import MoonpoolError, Unauthorized
from moonpool.schemas.framing import PROTOCOL_VERSION, FrameReader, encode_frame
from moonpool.schemas.messages import (
    Failed,
    GetStatus,
    Hello,
    LaneRead,
    Welcome,
    decode_from_master,
    decode_from_node,
    encode,
)
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import Credentials
from moonpool.store_client.rpc.tls import ClientTls
from moonpool.store_client.transports.lane import Lane

HELLO = Hello(PROTOCOL_VERSION, "client", "test")
STRANGERS = 400 * SOAK
GROWTH_BYTES = 24 << 20
"""What 400 connections may cost for a while; a TLS handshake under way takes up to 100 KiB."""


@pytest.fixture(scope="module")
def tls(certificates: Certificates) -> Credentials:
    return Credentials(tls=ClientTls(certificates.ca, certificates.cert, certificates.key, True))


@pytest.fixture(scope="module")
def master(certificates: Certificates) -> Iterator[MasterProcess]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in certificates.mutual.items()]
    with MasterProcess(flags) as process:
        yield process


def serve_one(server: ServerProcess, credentials: Credentials) -> None:
    """An honest client, on a new connection."""
    connection = RpcConnection(server.address, HELLO, decode_from_master, credentials)
    try:
        connection.call(GetStatus(), soon())
    finally:
        connection.close()


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 60)


def client_hello() -> bytes:
    """The first flight of a real TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outgoing = ssl.MemoryBIO()
    engine = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        engine.do_handshake()
    return outgoing.read()


def ends(sock: socket.socket) -> bool:
    """Whether the server closes it within some seconds, whatever it says before."""
    sock.settimeout(60)
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_half_open_handshakes_shut_nobody_out(master: MasterProcess, tls: Credentials) -> None:
    serve_one(master, tls)
    before_bytes = master.resident_bytes()
    hello = client_hello()
    with contextlib.ExitStack() as stack:
        strangers = []
        for number in range(STRANGERS):
            sock = stack.enter_context(dial(master.address))
            # Silent; the first byte of a handshake; half of one; one whose answer is never taken.
            sock.send(hello[: (0, 1, len(hello) // 2, len(hello))[number % 4]] or b"")
            strangers.append(sock)
            if number % 100 == 99:
                serve_one(master, tls)
        assert master.resident_bytes() - before_bytes < GROWTH_BYTES
        assert all(ends(sock) for sock in strangers)
    serve_one(master, tls)
    assert master.resident_bytes() - before_bytes < GROWTH_BYTES
    assert "Traceback" not in master.output()


def test_garbage_is_hung_up_on(master: MasterProcess, tls: Credentials) -> None:
    serve_one(master, tls)
    before_bytes = master.resident_bytes()
    for number in range(40 * SOAK):
        garbage = (
            b"GET / HTTP/1.1\r\nHost: pool\r\n\r\n",
            b"\x16\x03\x01\xff\xff" + os.urandom(70_000),
            b"\x16" * 5000,
            client_hello() + os.urandom(3000),
            os.urandom(3000),
        )[number % 5]
        with dial(master.address) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(garbage)
                sock.shutdown(socket.SHUT_WR)
            assert ends(sock)
    serve_one(master, tls)
    assert master.resident_bytes() - before_bytes < GROWTH_BYTES
    assert "Traceback" not in master.output()


def test_strangers_do_not_keep_lanes(
    master: MasterProcess, certificates: Certificates, tls: Credentials
) -> None:
    """All of them taken by peers that never say who they are: an honest one gets in long before their deadline."""
    with NodeProcess(master, lanes_max=8, **certificates.mutual) as node, contextlib.ExitStack() as stack:
        address = node.info.data_address
        hello = client_hello()
        for number in range(30):
            stack.enter_context(dial(address)).send(hello[: 1 + number % 2 * 100])
        lanes: list[Lane] = []

        def got_in() -> bool:
            with contextlib.suppress(MoonpoolError):
                lanes.append(Lane(address, HELLO, soon(), tls))
            return bool(lanes)

        wait_until(got_in)
        (lane,) = lanes
        lane.read(LaneRead(b"", b"", b""), Fragments.lists([], []), soon())
        lane.close()
        assert "Traceback" not in node.output()


PEER = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.sendall(bytes.fromhex(sys.argv[2]))
print(sock.recv(4096).hex())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_unix_socket_serves_its_own_user_alone() -> None:
    """Also where its file and folders let others connect."""
    frame = encode_frame(1, encode(HELLO)).hex()
    with MasterProcess() as master, NodeProcess(master) as node:
        path = Path(node.info.unix_path)
        for folder in (path, *list(path.parents)[:3]):
            if str(folder).startswith("/dev/shm/moonpool-test"):
                folder.chmod(0o777)
        answers = []
        for user in (0, 65534):
            ended = subprocess.run(
                ["/usr/bin/env", "python3", "-c", PEER, str(path), frame],
                user=user,
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            )
            ((_, body),) = FrameReader("node").feed(bytes.fromhex(ended.stdout))
            answers.append(decode_from_node(body))
        assert isinstance(answers[0], Welcome)
        assert isinstance(answers[1], Failed) and answers[1].code == Unauthorized.code
        assert "not user 65534" in answers[1].message
