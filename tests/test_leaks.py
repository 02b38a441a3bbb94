"""What the tests' own check for leaks tells: no thread that began earlier, each one that began inside."""

from __future__ import annotations

import threading

import pytest
from support.leaks import no_thread_left


def waiting_thread(name: str, go_on: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=go_on.wait, args=(60,), name=name)
    thread.start()
    return thread


def test_a_thread_of_earlier_tests_may_end_meanwhile() -> None:
    go_on = threading.Event()
    earlier = waiting_thread("earlier", go_on)
    with no_thread_left(0.0):
        go_on.set()
        earlier.join()


def test_a_thread_that_stays_is_named() -> None:
    go_on = threading.Event()
    with pytest.raises(AssertionError, match="left-over"), no_thread_left(0.05):
        left = waiting_thread("left-over", go_on)
    go_on.set()
    left.join()
