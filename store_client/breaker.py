"""The circuit breaker (invariant I5): a peer that is frozen or dead costs one deadline, then nothing, until a probe
finds it alive again. Pure: its owner gives it the time and holds a lock around it."""

from __future__ import annotations

from enum import StrEnum

from moonpool.schemas.errors import Unavailable


class BreakerState(StrEnum):
    """Whether calls go out."""

    CLOSED = "closed"  # all of them
    OPEN = "open"  # none until the pause is over
    HALF_OPEN = "half-open"  # one, the probe; the others fail until it has come back


class CircuitBreaker:
    """One peer's. Ask `before_call`, then say `succeeded`, `failed` or `undecided`."""

    def __init__(self, peer: str, retry_s: float, probe_s: float = 10.0) -> None:
        """`retry_s`: pause after a failure. `probe_s`: a probe that says nothing for so long is given up."""
        self.peer = peer
        self._retry_s = retry_s
        self._probe_s = probe_s
        self._state = BreakerState.CLOSED
        self._until_s = 0.0
        self.failures = 0
        """Calls that failed since the last one that succeeded."""

    def state(self, now_s: float) -> BreakerState:
        """What the next call would meet."""
        if self._state is not BreakerState.CLOSED and now_s >= self._until_s:
            return BreakerState.HALF_OPEN
        return self._state

    def before_call(self, now_s: float) -> None:
        """Lets the call go out. Raises Unavailable where it may not."""
        if self._state is BreakerState.CLOSED:
            return
        if now_s < self._until_s:
            raise Unavailable(peer=self.peer, retry_in_s=self._until_s - now_s)
        self._state = BreakerState.HALF_OPEN
        self._until_s = now_s + self._probe_s

    def succeeded(self) -> None:
        """The peer answered, if only to refuse."""
        self._state = BreakerState.CLOSED
        self.failures = 0

    def failed(self, now_s: float) -> None:
        """The peer could not be reached, broke off or was silent until the deadline."""
        self.failures += 1
        self._state = BreakerState.OPEN
        self._until_s = now_s + self._retry_s

    def undecided(self, now_s: float) -> None:
        """A call ended before the peer could show anything: was it the probe, the next call is one."""
        if self._state is BreakerState.HALF_OPEN:
            self._until_s = now_s

    def validate(self) -> None:
        """Raises AssertionError where the parts contradict each other."""
        assert (self._state is BreakerState.CLOSED) == (self.failures == 0), (self._state, self.failures)
        assert self._retry_s > 0 and self._probe_s > 0
