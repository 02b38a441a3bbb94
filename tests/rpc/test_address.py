"""Sockets as `dial` and servers set them up."""

from __future__ import annotations

import socket

import pytest

from moonpool.store_client.rpc.address import set_tcp_options


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
