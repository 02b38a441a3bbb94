"""A few threads for the parts of one call that go to different peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait


class Workers:
    """Threads are started when first needed. A task must not use the same Workers: it could wait for itself."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Does all tasks, the first one in this thread, and returns when the last one is done, even if one raises."""
        others = [self._pool.submit(task) for task in tasks[1:]]
        try:
            for task in tasks[:1]:
                task()
        finally:
            wait(others)  # whatever happens: they write into the caller's memory
        for other in others:
            other.result()

    def close(self) -> None:
        """Waits for tasks under way, ends the threads."""
        self._pool.shutdown()
