"""Scattered memory through a real socket: every byte at its place, deadlines kept, a gone peer noticed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from support.waiting import at_most, soon

from moonpool.schemas.packed import U64
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.transports.iovec import receive_pieces, send_pieces


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def scattered(rng: np.random.Generator, memory: np.ndarray, sizes: list[int]) -> U64:
    """Addresses of pieces in a random order, with gaps."""
    offsets = np.zeros(len(sizes), dtype=np.uint64)
    at = 0
    for i in rng.permutation(len(sizes)):
        offsets[i] = at
        at += sizes[i] + 3
    assert at <= len(memory)
    return offsets + np.uint64(address_of(memory))


@pytest.mark.parametrize("sizes", [[1], [0, 5, 0], [70_001] * 40, [33] * 5000, [1 << 20, 1, 3 << 20, 0, 77]])
def test_bytes_arrive_in_order(pair: tuple[socket.socket, socket.socket], sizes: list[int]) -> None:
    rng = np.random.default_rng(len(sizes))
    room = sum(sizes) + 3 * len(sizes)
    source = rng.integers(0, 256, room, dtype=np.uint8)
    to = np.zeros(room, dtype=np.uint8)
    columns = np.array(sizes, dtype=np.uint64)
    places, targets = scattered(rng, source, sizes), scattered(rng, to, sizes)
    deadline_s = soon()
    sender = threading.Thread(target=send_pieces, args=(pair[0], places, columns, deadline_s))
    sender.start()
    receive_pieces(pair[1], targets, columns, deadline_s)
    sender.join()
    for a, b, n in zip(places.tolist(), targets.tolist(), sizes, strict=True):
        a, b = a - address_of(source), b - address_of(to)
        assert np.array_equal(source[a : a + n], to[b : b + n])


def test_deadlines_are_kept_on_both_sides(pair: tuple[socket.socket, socket.socket]) -> None:
    memory = np.zeros(64 << 20, dtype=np.uint8)
    address, size = (
        np.array([address_of(memory)], dtype=np.uint64),
        np.array([memory.nbytes], dtype=np.uint64),
    )
    for move in (send_pieces, receive_pieces):
        start_s = time.monotonic()
        with pytest.raises(TimeoutError):
            move(pair[0], address, size, start_s + 0.2)
        assert 0.15 < time.monotonic() - start_s < at_most(0.2)


def test_a_gone_peer_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    memory = np.zeros(1 << 20, dtype=np.uint8)
    address, size = (
        np.array([address_of(memory)], dtype=np.uint64),
        np.array([memory.nbytes], dtype=np.uint64),
    )
    pair[1].sendall(b"half")
    pair[1].close()
    with pytest.raises(ConnectionResetError):
        receive_pieces(pair[0], address, size, soon())
    with pytest.raises(BrokenPipeError):
        send_pieces(pair[0], address, size, soon())
