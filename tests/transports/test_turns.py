"""One thread's exchanges between each other: in order, so many at once, and none left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moonpool.store_client.transports.turns import Steps, take_turns


class Work:
    """Steps that write down what they do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.open: set[str] = set()

    def steps(self, name: str, stops: int, good: bool = True, error: Exception | None = None) -> Steps:
        self.open.add(name)
        try:
            for number in range(stops):
                self.done.append(f"{name}{number}")
                yield
            if error is not None:
                raise error
            self.done.append(f"{name}.")
            return good
        finally:
            self.open.remove(name)


def test_while_one_waits_another_goes_on() -> None:
    work = Work()
    take_turns((work.steps(name, 2) for name in "abc"), 2)
    assert work.done == ["a0", "b0", "a1", "b1", "a.", "c0", "b.", "c1", "c."]


def test_one_at_a_time_is_one_after_the_other() -> None:
    work = Work()
    take_turns((work.steps(name, 1) for name in "ab"), 1)
    assert work.done == ["a0", "a.", "b0", "b."]


def test_what_never_stops_is_over_before_the_next_begins() -> None:
    work = Work()
    take_turns((work.steps(name, 0) for name in "ab"), 3)
    assert work.done == ["a.", "b."]


def test_after_a_failure_the_others_end_and_no_further_one_begins() -> None:
    work = Work()
    take_turns((work.steps(name, 1, good=name != "a") for name in "abcd"), 2)
    assert work.done == ["a0", "b0", "a.", "b."] and not work.open


def test_an_error_closes_the_others() -> None:
    work = Work()
    begun: list[str] = []

    def all_steps() -> Iterator[Steps]:
        for name in "abcd":
            begun.append(name)
            yield work.steps(name, 1, error=KeyError(name) if name == "b" else None)

    with pytest.raises(KeyError, match="b"):
        take_turns(all_steps(), 3)
    assert begun == ["a", "b", "c", "d"] and not work.open
    assert work.done == ["a0", "b0", "c0", "a.", "d0"]
