"""A client's socket: the exchange in C and its double in Python do the same."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.waiting import at_most, soon

from moonpool.schemas.errors import ProtocolError
from moonpool.schemas.framing import FRAME_BYTES_MAX, PREFIX, encode_frame
from moonpool.store_client import native
from moonpool.store_client.rpc import wire as wire_module
from moonpool.store_client.rpc.wire import Wire

QUESTION = encode_frame(9, b"question")

needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")


@pytest.fixture(params=[pytest.param(True, marks=needs_c, id="c"), pytest.param(False, id="python")])
def ends(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Wire, socket.socket]]:
    """A wire and what is at its other end."""
    monkeypatch.setattr(wire_module.native, "HOT", request.param)
    ours, theirs = socket.socketpair()
    wire = Wire(ours, "peer")
    wire.reader.limit_bytes = FRAME_BYTES_MAX
    with theirs:
        yield wire, theirs
    wire.close()


@settings(
    derandomize=True,
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 5, 4000, 70_000, 140_000]), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 200_000), max_size=6),
)
def test_frames_come_whole_however_they_are_cut(
    ends: tuple[Wire, socket.socket], sizes: list[int], cuts: list[int]
) -> None:
    wire, theirs = ends
    frames = [(number + 1, os.urandom(size)) for number, size in enumerate(sizes)]
    stream = b"".join(encode_frame(*frame) for frame in frames)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]

    def answer() -> None:
        assert theirs.recv(100) == QUESTION
        for first, end in itertools.pairwise(edges):
            theirs.sendall(stream[first:end])

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        found = [wire.exchange(9, b"question", soon())]
        found += [wire.receive(soon()) for _ in frames[1:]]
    finally:
        thread.join()
    assert found == frames
    assert wire.heard


def test_what_came_before_is_not_lost_when_the_next_frame_goes_out(ends: tuple[Wire, socket.socket]) -> None:
    wire, theirs = ends
    theirs.sendall(encode_frame(1, b"a") + encode_frame(2, b"b") + encode_frame(3, b"c")[:9])
    assert wire.exchange(7, b"x", soon()) == (1, b"a")
    assert wire.exchange(8, b"y", soon()) == (2, b"b")
    assert theirs.recv(100) == encode_frame(7, b"x") + encode_frame(8, b"y")
    theirs.sendall(encode_frame(3, b"c")[9:])
    assert wire.receive(soon()) == (3, b"c")


@pytest.mark.parametrize("length", [0, 4, FRAME_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_length_that_cannot_be_is_told_at_once(ends: tuple[Wire, socket.socket], length: int) -> None:
    wire, theirs = ends
    theirs.sendall(PREFIX.pack(length, 1))
    with pytest.raises(ProtocolError, match=f"frame of {length} bytes"):
        wire.receive(soon())


@pytest.mark.parametrize("part", [b"", b"\x09", PREFIX.pack(1000, 1) + b"half"])
def test_an_end_in_the_middle_is_an_error(ends: tuple[Wire, socket.socket], part: bytes) -> None:
    wire, theirs = ends
    theirs.sendall(part)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError):
        wire.exchange(9, b"question", soon())
    assert wire.heard is bool(part), "who has heard nothing may ask again elsewhere"


@pytest.mark.parametrize("part", [b"", PREFIX.pack(1000, 1) + b"half"])
def test_a_deadline_ends_the_wait(ends: tuple[Wire, socket.socket], part: bytes) -> None:
    wire, theirs = ends
    theirs.sendall(part)
    start_s = time.monotonic()
    with pytest.raises(TimeoutError):
        wire.exchange(9, b"question", start_s + 0.05)
    assert 0.05 <= time.monotonic() - start_s < at_most(0.05)
    with pytest.raises(TimeoutError):
        wire.exchange(10, b"never", start_s)
    assert theirs.recv(100) == QUESTION


def test_who_does_not_read_costs_the_deadline(ends: tuple[Wire, socket.socket]) -> None:
    wire, theirs = ends
    with pytest.raises(TimeoutError):
        wire.send(1, bytes(8 << 20), time.monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        wire.exchange(2, bytes(8 << 20), time.monotonic() + 0.05)
    assert theirs.recv(1)


@pytest.mark.parametrize("size_bytes", [1, 4096, 4097, 3 << 20])
def test_what_goes_out_is_one_frame_however_large(ends: tuple[Wire, socket.socket], size_bytes: int) -> None:
    """Small bodies are copied behind their prefix, large ones sent from where they lie, and read meanwhile."""
    wire, theirs = ends
    body = os.urandom(size_bytes)

    def echo() -> None:
        with theirs.makefile("rb") as stream:
            theirs.sendall(stream.read(len(body) + PREFIX.size))

    thread = threading.Thread(target=echo)
    thread.start()
    assert wire.exchange(5, body, soon()) == (5, body)
    thread.join()


def test_another_thread_ends_the_wait(ends: tuple[Wire, socket.socket]) -> None:
    wire, _ = ends
    threading.Timer(0.05, wire.interrupt).start()
    with pytest.raises(ConnectionError):
        wire.exchange(9, b"question", soon())


def test_signals_are_served_while_it_waits(ends: tuple[Wire, socket.socket]) -> None:
    """One whose handler returns is waited through; one that raises, as Ctrl-C does, ends the wait."""
    wire, theirs = ends
    seen: list[int] = []

    def handle(number: int, frame: object) -> None:
        seen.append(number)
        if len(seen) == 2:
            raise KeyboardInterrupt

    def disturb() -> None:
        for count in (1, 2):
            while len(seen) < count:  # one that comes too early is not seen before the next
                signal.pthread_kill(main, signal.SIGUSR1)
                time.sleep(0.05)

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            wire.exchange(9, b"question", soon())
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert theirs.recv(100) == QUESTION, "sent once"
