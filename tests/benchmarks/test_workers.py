"""Processes of subjects, and what becomes of a run when one dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from moonpool.benchmarks.arena import Arena, Shape
from moonpool.benchmarks.scale import QUICK
from moonpool.benchmarks.trials import Samples, put_and_get, rounds
from moonpool.benchmarks.workers import DIED, Worker
from moonpool.schemas.errors import RpcFailed


@pytest.fixture
def arena() -> Iterator[Arena]:
    fd = os.memfd_create("test")
    try:
        yield Arena.make(fd, 1 << 20)
    finally:
        os.close(fd)


def memcpy(name: str, arena: Arena) -> Worker:
    """A subject that needs no server."""
    return Worker(name, "memcpy", {"size_bytes": 1 << 20}, arena)


def test_a_row_is_put_got_back_and_compared(arena: Arena) -> None:
    cases = Samples("p", "put", "us"), Samples("g", "get", "us")
    with memcpy("limit", arena) as worker:
        results = put_and_get(QUICK, [worker], cases, Shape(2, 4096), 3, lambda seconds: seconds * 1e6)
    assert [(one.case, one.samples, one.verified) for one in results] == [("p", 6, True), ("g", 6, True)]


def test_anothers_process_that_dies_is_left_out(arena: Arena, capfd: pytest.CaptureFixture[str]) -> None:
    with memcpy("mooncake", arena) as killed, memcpy("limit", arena) as other:
        os.kill(killed.pid, signal.SIGKILL)
        killed.send("put", prefix="a", shape=Shape(1, 4096))
        assert killed.receive() == DIED
        assert killed.died
        assert killed.ask("get", prefix="a", shape=Shape(1, 4096)) == DIED
        assert [order for _, order in rounds(QUICK, [killed, other])] == [[other]] * QUICK.samples
    assert capfd.readouterr().err.count("mooncake has died in put") == 1


def test_ours_that_dies_ends_the_run(arena: Arena) -> None:
    with memcpy("moonpool-sums", arena) as killed:
        os.kill(killed.pid, signal.SIGKILL)
        with pytest.raises(RpcFailed, match="the benchmark of moonpool-sums"):
            killed.ask("put", prefix="a", shape=Shape(1, 4096))
