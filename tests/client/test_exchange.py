"""Several requests at once: whoever is slow keeps nobody else's answer back."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.waiting import at_most, soon, wait_until

from moonpool.schemas.errors import DeadlineExceeded, MoonpoolError, NotFound, Unavailable
from moonpool.schemas.messages import Done, Message
from moonpool.store_client.exchange import exchange
from moonpool.store_client.master import Asked


class Line:
    """Stands for a request: answered when a byte comes."""

    def __init__(self, error: MoonpoolError | None = None) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.error = error
        self.finished_s = self.abandoned = 0.0

    def fileno(self) -> int:
        return self.ours.fileno()

    def finish(self, deadline_s: float) -> Message:
        self.finished_s = time.monotonic()
        self.ours.settimeout(max(0.001, deadline_s - time.monotonic()))
        try:
            self.ours.recv(1)
        except TimeoutError:
            raise DeadlineExceeded(peer="a line", what="a byte", timeout_s=0.0) from None
        if self.error is not None:
            raise self.error
        return Done(1)

    def abandon(self) -> None:
        self.abandoned = time.monotonic()


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    made = [Line() for _ in range(4)]
    yield made
    for line in made:
        line.ours.close()
        line.theirs.close()


def begun(line: Line) -> Asked:
    return line  # type: ignore[return-value]


def test_answers_are_taken_as_they_come(lines: list[Line]) -> None:
    lines[1].error = NotFound(key="k")
    for line in lines[1:]:
        line.theirs.send(b"x")

    def answer_last() -> None:
        wait_until(lambda: all(line.finished_s for line in lines[1:]))
        lines[0].theirs.send(b"x")

    late = threading.Thread(target=answer_last)
    late.start()
    outcomes = exchange([lambda line=line: begun(line) for line in lines], soon(60))  # type: ignore[misc]
    late.join()
    assert outcomes == [Done(1), lines[1].error, Done(1), Done(1)]
    assert max(line.finished_s for line in lines[1:]) < lines[0].finished_s


def test_one_that_is_frozen_costs_the_others_nothing(lines: list[Line]) -> None:
    for line in lines[1:]:
        line.theirs.send(b"x")
    start_s = time.monotonic()
    outcomes = exchange([lambda line=line: begun(line) for line in lines], start_s + 1.0)  # type: ignore[misc]
    assert isinstance(outcomes[0], DeadlineExceeded) and outcomes[1:] == [Done(1)] * 3
    assert time.monotonic() - start_s < at_most(1.0)


def test_one_that_cannot_be_sent_leaves_the_others_be(lines: list[Line]) -> None:
    def fails() -> Asked:
        raise Unavailable(peer="a line", retry_in_s=1.0)

    lines[0].theirs.send(b"x")
    outcomes = exchange([fails, lambda: begun(lines[0])], soon())
    assert isinstance(outcomes[0], Unavailable) and outcomes[1] == Done(1)


def test_what_was_begun_is_abandoned_when_something_else_breaks(lines: list[Line]) -> None:
    def breaks() -> Asked:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exchange([lambda: begun(lines[0]), breaks], soon())
    assert lines[0].abandoned and not lines[0].finished_s
