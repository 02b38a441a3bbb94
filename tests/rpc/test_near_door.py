"""A server's near door: peers of its host go on there, everybody else stays on the port, and nobody gets in who couldn't before."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from support.echo_server import HELLO, MATCH, EchoHandler, ThreadedServer
from support.guarded import TOKENS, write_tokens
from support.processes import MasterProcess
from support.waiting import soon, wait_until

from moonpool.schemas.errors import Unauthorized
from moonpool.schemas.framing import PROTOCOL_VERSION, FrameReader, encode_frame
from moonpool.schemas.messages import Matched, Welcome, decode_from_master, decode_master_request, encode
from moonpool.store_client.rpc import near as near_module
from moonpool.store_client.rpc.access import Access
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.rpc.near import NearDoor, near_address
from moonpool.store_client.rpc.server import RpcServer
from moonpool.store_client.rpc.tls import ServerTls
from moonpool.store_client.rpc.tokens import TokenFile

ANSWER = Matched([5])


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    with ThreadedServer(near=True) as server:
        yield server


@contextlib.contextmanager
def connected(address: str, credentials: Credentials = NO_CREDENTIALS) -> Iterator[RpcConnection]:
    connection = RpcConnection(address, HELLO, decode_from_master, credentials)
    try:
        assert connection.call(MATCH, soon()) == ANSWER
        yield connection
    finally:
        connection.close()


def wait_for_connections(server: ThreadedServer, count: int) -> None:
    """Until it has as many open: it hears of closed ones in its own time."""
    wait_until(lambda: server.connections == count)


def is_near(connection: RpcConnection) -> bool:
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        return sock.family == socket.AF_UNIX


def test_a_peer_of_the_same_host_goes_on_through_the_near_door(server: ThreadedServer) -> None:
    wait_for_connections(server, 0)
    with connected(server.address) as connection:
        assert is_near(connection)
        assert connection.address == server.address  # what people are told doesn't change
        assert connection.call(MATCH, soon()) == ANSWER
        wait_for_connections(server, 1)  # the one over tcp is closed


def test_an_interrupt_amid_the_move_leaves_nothing_open(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("moonpool.store_client.rpc.connection.check_same", interrupted)
    with pytest.raises(KeyboardInterrupt), connected(server.address):
        pass
    wait_for_connections(server, 0)


async def test_so_does_an_asyncio_peer(server: ThreadedServer) -> None:
    connection = await AsyncRpcConnection.connect(server.address, HELLO, decode_from_master, timeout_s=60)
    assert connection._transport.get_extra_info("socket").family == socket.AF_UNIX
    assert await connection.call(MATCH, 60) == ANSWER
    await connection.close()


def test_who_comes_through_a_proxy_stays_behind_it(server: ThreadedServer) -> None:
    host, _, port = server.address.partition(":")
    with socket.create_server((host, 0)) as listener:

        def carry() -> None:
            there, _ = listener.accept()
            with there, socket.create_connection((host, int(port))) as onward:
                back = threading.Thread(target=pump, args=(onward, there))
                back.start()
                pump(there, onward)
                back.join()

        proxy = threading.Thread(target=carry)
        proxy.start()
        with connected(f"{host}:{listener.getsockname()[1]}") as connection:
            assert connection.welcome is not None
            assert connection.welcome.near  # the server can't see it
            assert not is_near(connection)
        proxy.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def closed(_: socket.socket) -> None:
    """What `door` does with who comes: it has nobody behind it."""


def silent(sock: socket.socket) -> None:
    there, _ = sock.accept()
    with there:
        while there.recv(1 << 16):  # until the peer has had enough
            pass


def a_stranger(sock: socket.socket) -> None:
    there, _ = sock.accept()
    with there:
        hello = next(FrameReader("peer").feed(there.recv(1 << 16)))[0]
        there.sendall(encode_frame(hello, encode(Welcome(PROTOCOL_VERSION, "x", 0, 1 << 20, near="y"))))
        there.recv(1 << 16)


def garbage(sock: socket.socket) -> None:
    there, _ = sock.accept()
    with there:
        there.sendall(b"\xff" * 64)
        there.recv(1 << 16)


@contextlib.contextmanager
def bad_door(behind: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that names a near door behind which something else is."""
    with ThreadedServer() as server:
        door = NearDoor.new(int(server.address.partition(":")[2]))
        with contextlib.ExitStack() as stack:
            if behind is not closed:
                sock = stack.enter_context(door.bind())
                sock.listen()
                thread = threading.Thread(target=behind, args=(sock,))
                thread.start()
                stack.callback(thread.join)
            server._server._service.near = door
            yield server.address


@pytest.mark.parametrize("behind", [closed, silent, a_stranger, garbage])
def test_a_near_door_that_doesn_t_open_costs_a_moment(
    behind: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.store_client.rpc.connection.NEAR_TIMEOUT_S", 0.2)
    with bad_door(behind) as address, connected(address) as connection:
        assert not is_near(connection)
        assert connection.call(MATCH, soon()) == ANSWER


@pytest.mark.parametrize("behind", [closed, silent, a_stranger, garbage])
async def test_for_an_asyncio_peer_too(
    behind: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.store_client.rpc.async_connection.NEAR_TIMEOUT_S", 0.2)
    with bad_door(behind) as address:
        connection = await AsyncRpcConnection.connect(address, HELLO, decode_from_master, timeout_s=60)
        assert connection._transport.get_extra_info("socket").family == socket.AF_INET
        assert await connection.call(MATCH, 60) == ANSWER
        await connection.close()


def test_a_peer_knocks_at_no_door_that_is_none_of_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as sock:

            def found(near: str, near_port: int = port) -> bool:
                welcome = Welcome(PROTOCOL_VERSION, "x", 0, 1, near=near, near_port=near_port)
                return near_address(sock, welcome) is not None

            assert found(NearDoor.new(port).name)
            assert not found("")
            assert not found("containerd-shim")
            assert not found("moonpool-" + "a" * 32 + "/../x")
            assert not found("moonpool-" + "a" * 33)
            assert not found(NearDoor.new(port).name, port + 1)


def test_another_host_s_peer_is_told_of_none(server: ThreadedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonpool.store_client.rpc.service.is_within_host", lambda sock: False)
    with connected(server.address) as connection:
        assert connection.welcome is not None
        assert connection.welcome.near == ""
        assert not is_near(connection)


def test_the_token_is_asked_for_there_too(tmp_path: Path) -> None:
    access = Access(TokenFile(str(write_tokens(tmp_path / "tokens.json"))))
    with ThreadedServer(near=True, access=access) as server:
        with connected(server.address, Credentials(TOKENS["red"])) as connection:
            assert is_near(connection)
        door = server._server._service.near
        assert door is not None
        unasked = RpcConnection("unix:x", HELLO, decode_from_master)
        unasked._target = near_module.Address(path=f"\0{door.name}")
        with pytest.raises(Unauthorized):
            unasked.call(MATCH, soon())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_get_in_as_they_do_over_tcp(server: ThreadedServer) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(65534)
            with connected(server.address) as connection:
                code = 0 if is_near(connection) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def test_a_server_that_speaks_tls_has_none() -> None:
    server = RpcServer(EchoHandler(), decode_master_request, "echo", tls=cast(ServerTls, object()))
    await server.listen_near(1)
    assert server._service.near is None
    await server.close()


@pytest.mark.parametrize("wanted", [True, False])
def test_a_master_has_one_unless_told_otherwise(wanted: bool) -> None:
    with MasterProcess([] if wanted else ["--near-door=false"]) as master, connected_to(master) as connection:
        assert is_near(connection) is wanted


@contextlib.contextmanager
def connected_to(master: MasterProcess) -> Iterator[RpcConnection]:
    connection = RpcConnection(master.address, HELLO, decode_from_master)
    try:
        with contextlib.suppress(Exception):  # whatever it says to a Match of an unknown keyspace
            connection.call(MATCH, soon())
        yield connection
    finally:
        connection.close()
