"""Threads that several calls share: one call's slow peer must not cost another call more than its deadline."""

from __future__ import annotations

import threading
import time

import pytest
from support.waiting import at_most, wait_until

from moonpool.store_client.workers import Workers


def test_a_task_that_finds_no_thread_in_time_is_left_undone() -> None:
    workers = Workers(1, "test")
    frozen, begun = threading.Event(), threading.Event()

    def wait_for_a_frozen_peer() -> None:
        begun.set()
        assert frozen.wait(120)

    tasks = [lambda: None, wait_for_a_frozen_peer]
    other = threading.Thread(target=workers.run, args=(tasks, time.monotonic() + 60))
    other.start()
    assert begun.wait(60)
    done: list[str] = []
    start_s = time.monotonic()
    workers.run([lambda: done.append("mine"), lambda: done.append("other")], start_s + 0.1)
    assert 0.1 <= time.monotonic() - start_s < at_most(0.1)
    frozen.set()
    other.join()
    workers.run([lambda: None, lambda: done.append("later")], time.monotonic() + 60)
    assert done == ["mine", "later"], "what was left undone stays so"
    workers.close()


def test_a_task_that_has_begun_is_waited_for_beyond_the_deadline_and_may_raise() -> None:
    workers = Workers(1, "test")
    done: list[str] = []
    deadline_s = time.monotonic() + 1.5
    begun = threading.Event()

    def land_late() -> None:
        begun.set()
        wait_until(lambda: time.monotonic() > deadline_s + 0.1)
        done.append("landed")
        raise RuntimeError("as it is")

    with pytest.raises(RuntimeError, match="as it is"):
        workers.run([lambda: begun.wait(60), land_late], deadline_s)
    assert done == ["landed"]
    workers.close()
