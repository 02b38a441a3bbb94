"""A few threads with one bounded queue between them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

CLOSE_WAIT_S = 5.0

Job = TypeVar("Job")


class JobRunner(Protocol):
    """Something that handles jobs some time. The fake, in the tests, handles them when it is told to."""

    def submit(self, job: Any) -> bool:
        """False where nobody will handle the job."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class RunnerMaker(Protocol):
    """Makes a JobRunner, with the arguments of Workers."""

    def __call__(
        self,
        name: str,
        handle: Callable[[Any], None],
        *,
        threads: int,
        queue_max: int,
        begin: Callable[[], None] | None = None,
    ) -> JobRunner:
        """`handle(job)` for each job."""
        ...


class Workers(Generic[Job]):
    """Runs `handle(job)` for each job. `handle` must answer for its job itself; what it raises is a bug and is logged."""

    def __init__(
        self,
        name: str,
        handle: Callable[[Job], None],
        *,
        threads: int,
        queue_max: int,
        begin: Callable[[], None] | None = None,
    ) -> None:
        """`begin` runs once in each thread, such as to pick its GPU."""
        self._handle = handle
        self._begin = begin
        self._jobs: queue.Queue[Job | None] = queue.Queue(queue_max)
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"moonpool-{name}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> bool:
        """False where the queue is full or closed: then nobody will handle the job."""
        if self._closed.is_set():
            return False
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Jobs that nobody has begun are dropped; those under way get CLOSE_WAIT_S."""
        self._closed.set()
        for _ in self._threads:
            try:
                self._jobs.put_nowait(None)
            except queue.Full:
                break  # the threads look at the flag between two jobs
        end_s = time.monotonic() + CLOSE_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
            if thread.is_alive():
                log.warning("%s is still at work %.0f s after close", thread.name, CLOSE_WAIT_S)

    def _run(self) -> None:
        try:
            if self._begin is not None:
                self._begin()
        except Exception:  # without this thread nobody would ever say how its jobs went
            log.exception("%s could not begin as it should", threading.current_thread().name)
        while not self._closed.is_set():
            job = self._jobs.get()
            if job is None:
                return
            try:
                self._handle(job)
            except Exception:
                log.exception("%s lost a job", threading.current_thread().name)
