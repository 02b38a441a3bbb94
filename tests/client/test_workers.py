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


def test_together_two_threads_share_what_there_is_to_do() -> None:
    workers = Workers(1, "test")
    both = threading.Barrier(2)
    left = iter(range(100))
    seen: dict[int, set[int]] = {}

    def work() -> None:
        both.wait(60)
        for number in left:
            seen.setdefault(threading.get_ident(), set()).add(number)

    workers.together(work, 1)
    assert len(seen) <= 2 and sorted(number for mine in seen.values() for number in mine) == list(range(100))
    workers.close()


def test_together_nobody_is_waited_for_who_has_not_begun() -> None:
    workers = Workers(1, "test")
    free, done = threading.Event(), list[int]()
    busy = threading.Thread(target=workers.together, args=(lambda: free.wait(120), 1))
    busy.start()
    wait_until(lambda: len(workers._pool._threads) == 1 and workers._pool._work_queue.empty())
    workers.together(lambda: done.append(threading.get_ident()), 1)
    assert done == [threading.get_ident()]
    free.set()
    busy.join()
    workers.close()


def test_together_what_another_one_raises_is_raised_once_all_are_done() -> None:
    workers = Workers(1, "test")
    main, begun, done = threading.get_ident(), threading.Event(), list[str]()

    def work() -> None:
        if threading.get_ident() == main:
            assert begun.wait(60)
            done.append("mine")
        else:
            begun.set()
            raise RuntimeError("as it is")

    with pytest.raises(RuntimeError, match="as it is"):
        workers.together(work, 1)
    assert done == ["mine"]
    workers.close()
