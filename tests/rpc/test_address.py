"""Addresses of servers, and sockets as `dial` and servers set them up."""

from __future__ import annotations

import socket

import pytest

from moonpool.schemas.errors import InvalidParams
from moonpool.store_client.rpc.access import is_loopback
from moonpool.store_client.rpc.address import Address, resolve, set_tcp_options

NO_NAMES = ["a..b", ".", "x" * 64, "\ud800"]
"""For which getaddrinfo has a ValueError in the place of an answer."""


@pytest.mark.parametrize("host", NO_NAMES)
def test_what_can_be_no_host_is_told_as_such(host: str) -> None:
    with pytest.raises(InvalidParams, match="host names of parts"):
        Address.parse(f"{host}:50051")
    with pytest.raises(OSError, match="is no host name"):
        resolve(host, 0)
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["localhost", "a.b", "x" * 63, "b\u00fccher.example", "127.0.0.1", "[::1]"])
def test_hosts_that_may_be(host: str) -> None:
    assert Address.parse(f"{host}:1").host == host.strip("[]")


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_nothing_is_paced_within_a_host(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip("no such address here")
        listener.listen()
        with socket.socket(family) as sock:
            sock.connect(listener.getsockname())
            set_tcp_options(sock)
            algorithm = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert algorithm.rstrip(b"\0") == b"reno"
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_socket_without_a_peer_keeps_the_kernels_choice() -> None:
    with socket.socket() as sock:
        before = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        set_tcp_options(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) == before
