"""A few threads for the parts of one call that go to different peers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context

from moonpool.store_client.tracing import traceparent


class Workers:
    """Threads are started when first needed. A task must not use the same Workers: it could wait for itself."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def run(self, tasks: Sequence[Callable[[], None]], deadline_s: float) -> None:
        """Does all tasks, the first one in this thread, and returns when the last one is done, even if one raises.

        A task that has found no thread by `deadline_s` is left undone: other calls keep them all busy, perhaps with
        a peer that is frozen. Those that have begun are waited for; each minds the deadline itself.
        """
        if len(tasks) == 1:
            tasks[0]()
            return
        others = [self._submit(task) for task in tasks[1:]]
        try:
            for task in tasks[:1]:
                task()
        finally:
            wait(others, max(0.0, deadline_s - time.monotonic()))
            begun = [other for other in others if not other.cancel()]
            wait(begun)  # whatever happens: they write into the caller's memory
        for other in begun:
            other.result()

    def together(self, task: Callable[[], None], others: int) -> None:
        """Does a task in this thread, and once more in each of so many other ones that come to it before it is over here: what
        there is to do they take from one place. Returns when none of them is at it any more."""
        if not others:
            task()
            return
        more = [self._submit(task) for _ in range(others)]
        try:
            task()
        finally:
            begun = [one for one in more if not one.cancel()]
            wait(begun)
        for one in begun:
            one.result()

    def _submit(self, task: Callable[[], None]) -> Future[None]:
        if traceparent.get():  # each in a context of its own: one can't be entered twice at once
            return self._pool.submit(copy_context().run, task)
        return self._pool.submit(task)

    def close(self) -> None:
        """Waits for tasks under way, ends the threads."""
        self._pool.shutdown()
