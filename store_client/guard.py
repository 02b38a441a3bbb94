"""A circuit breaker around calls: the lock and the clock that the pure one is given."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

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


class Guard:
    """One peer's breaker, for any number of threads."""

    def __init__(self, peer: str, retry_s: float) -> None:
        self._breaker = CircuitBreaker(peer, retry_s)
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether the peer failed lately, and hasn't been found alive since."""
        with self._lock:
            return self._breaker.failures > 0

    @contextmanager
    def call(self, start_s: float) -> Iterator[None]:
        """Around one call that began at `start_s`. Raises Unavailable at once where the peer failed lately."""
        with self._lock:
            self._breaker.before_call(start_s)
        try:
            yield
        except (Closed, UsedAfterFork):
            raise  # our own doing
        except (
            Unreachable,
            Unauthorized,
        ) as error:  # a door that stays shut isn't knocked at for each request
            now_s = time.monotonic()
            impatient = isinstance(error, DeadlineExceeded) and now_s - start_s < PATIENCE_S
            with self._lock:
                if impatient:
                    self._breaker.undecided(now_s)
                else:
                    self._breaker.failed(now_s)
            raise
        except MoonpoolError:
            self._succeeded()  # it answered, if only to refuse
            raise
        self._succeeded()

    def _succeeded(self) -> None:
        with self._lock:
            self._breaker.succeeded()
