"""A circuit breaker around calls: the lock and the clock that the pure one is given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from moonpool.schemas.errors import (
    Closed,
    DeadlineExceeded,
    MoonpoolError,
    Unauthorized,
    Unreachable,
    UsedAfterFork,
)
from moonpool.store_client.breaker import CircuitBreaker

PATIENCE_S = 0.05
"""A peer that was given less time than this has not proved anything by its silence."""


Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Guard:
    """One peer's breaker, for any number of threads."""

    def __init__(self, peer: str, retry_s: float) -> None:
        self.breaker = CircuitBreaker(peer, retry_s)
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether the peer failed lately, and hasn't been found alive since."""
        with self._lock:
            return self.breaker.failures > 0

    def call(self, start_s: float) -> GuardedCall:
        """Around one call that began at `start_s`. Raises Unavailable at once where the peer failed lately."""
        return GuardedCall(self, start_s)

    def ask(self, ask: Callable[[Asked, float], Answer], message: Asked, deadline_s: float) -> Answer:
        """The answer of a call that begins now: `with call`, in fewer steps. Raises also Unavailable."""
        start_s = time.monotonic()
        self._begin(start_s)
        try:
            answer = ask(message, deadline_s)
        except BaseException as error:
            self._end(start_s, error)
            raise
        self._end(start_s, None)
        return answer

    def _begin(self, start_s: float) -> None:
        if self.breaker.failures:
            with self._lock:
                self.breaker.before_call(start_s)

    def _end(self, start_s: float, error: BaseException | None) -> None:
        if error is None and not self.breaker.failures:  # nothing to take back
            return
        if isinstance(error, (Closed, UsedAfterFork)):
            return  # our own doing
        if isinstance(
            error, (Unreachable, Unauthorized)
        ):  # a door that stays shut isn't knocked at for each request
            now_s = time.monotonic()
            impatient = isinstance(error, DeadlineExceeded) and now_s - start_s < PATIENCE_S
            with self._lock:
                if impatient:
                    self.breaker.undecided(now_s)
                else:
                    self.breaker.failed(now_s)
        elif error is None or isinstance(error, MoonpoolError):  # it answered, if only to refuse
            with self._lock:
                self.breaker.succeeded()


class GuardedCall:
    """`with` it; a generator would cost as much as the rest of the guard."""

    __slots__ = ("_guard", "_start_s")

    def __init__(self, guard: Guard, start_s: float) -> None:
        self._guard = guard
        self._start_s = start_s

    def __enter__(self) -> None:
        self._guard._begin(self._start_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._guard._end(self._start_s, error)
