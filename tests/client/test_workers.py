"""Threads that several calls share: one call's slow peer must not cost another call more than its deadline."""

from __future__ import annotations

import threading
import time

import pytest

from moonpool.store_client.workers import Workers


def test_a_task_that_finds_no_thread_in_time_is_left_undone() -> None:
    workers = Workers(1, "test")
    frozen, begun = threading.Event(), threading.Event()

    def wait_for_a_frozen_peer() -> None:
        begun.set()
        assert frozen.wait(10)

    tasks = [lambda: None, wait_for_a_frozen_peer]
    other = threading.Thread(target=workers.run, args=(tasks, time.monotonic() + 10))
    other.start()
    assert begun.wait(5)
    done: list[str] = []
    start_s = time.monotonic()
    workers.run([lambda: done.append("mine"), lambda: done.append("other")], start_s + 0.1)
    assert 0.1 <= time.monotonic() - start_s < 5
    frozen.set()
    other.join()
    workers.run([lambda: None, lambda: done.append("later")], time.monotonic() + 5)
    assert done == ["mine", "later"], "what was left undone stays so"
    workers.close()


def test_a_task_that_has_begun_is_waited_for_beyond_the_deadline_and_may_raise() -> None:
    workers = Workers(1, "test")
    done: list[str] = []

    def land_late() -> None:
        time.sleep(0.2)
        done.append("landed")
        raise RuntimeError("as it is")

    def wait_until_begun() -> None:
        time.sleep(0.05)

    with pytest.raises(RuntimeError, match="as it is"):
        workers.run([wait_until_begun, land_late], time.monotonic() + 0.1)
    assert done == ["landed"]
    workers.close()
