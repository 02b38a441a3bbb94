"""A door that lets calls in until it is closed, and is closed only when all of them are out again."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Self

from moonpool.schemas.errors import Closed, UsedAfterFork


class Gate:
    """`with gate:` around every call that uses what `close` is about to free."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # nobody is inside any more
        self._inside = 0
        self._closed = False
        self._pid = os.getpid()

    @property
    def closed(self) -> bool:
        """Whether `close` has begun: long calls stop at the next good place."""
        return self._closed

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made it: its locks and threads are not to be trusted."""
        return os.getpid() != self._pid

    def __enter__(self) -> Self:
        """Raises Closed and UsedAfterFork."""
        if os.getpid() != self._pid:
            raise UsedAfterFork(what=self._what, pid=self._pid)
        with self._lock:
            if self._closed:
                raise Closed(what=self._what)
            self._inside += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._closed and not self._inside:
                self._changed.notify_all()

    def close(self) -> bool:
        """Refuses new calls. False where it was closed already."""
        with self._changed:
            was_open, self._closed = not self._closed, True
            return was_open

    def wait_empty(self) -> None:
        """Returns when the last call is out. Calls are bounded by their deadlines, so this is too."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside)
