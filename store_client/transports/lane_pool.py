"""A node's lanes, shared by the threads of a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from moonpool.schemas.errors import Closed, DeadlineExceeded, KeyspaceUnknown, MoonpoolError, RpcFailed
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Hello, RegisterKeyspace
from moonpool.store_client import native
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.transports.lane import Lane

Answer = TypeVar("Answer")


Share = tuple[int, int]
"""Objects that one exchange is about: the first one, and the end."""

Borrowed = tuple[Lane, bool]
"""A lane, and whether it had lain idle."""


class Shared(Protocol):
    """Work on some objects that is done in shares, each by one exchange."""

    def together(
        self, lanes: Sequence[Borrowed], shares: Sequence[Share], deadline_s: float
    ) -> list[Exception | None]:
        """A share on each lane, all at once and without the interpreter lock. Returns what went wrong: OSError or
        MoonpoolError. Only plain lanes, and where native.HOT."""
        ...

    def alone(self, share: Share, deadline_s: float, lane: Lane) -> None:
        """One share. Raises OSError, MoonpoolError."""
        ...


class _DiedIdle(Exception):
    """A fresh lane may do."""


class LanePool:
    """At most `size_max` connections to one node, each taken for one exchange at a time."""

    def __init__(
        self, address: str, hello: Hello, size_max: int, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        self.address = address
        self._credentials = credentials
        self.together = native.HOT and credentials.tls is None
        """Whether one thread can serve several lanes at once."""
        self._hello = hello
        self._size_max = size_max
        self._lock = threading.Lock()
        self._changed = threading.Condition(
            self._lock
        )  # somebody gave a lane back, and somebody waits for one
        self._waiting = 0
        self._free: list[Lane] = []
        self._busy: list[Lane] = []
        self._taken = 0
        self._closed = False

    @property
    def has_room(self) -> bool:
        """Whether an exchange could begin at once."""
        return self._taken < self._size_max

    def exchange(
        self,
        do: Callable[[Lane], Answer],
        keyspace: KeyspaceSpec | None,
        deadline_s: float,
        *,
        fresh: bool = False,
    ) -> Answer:
        """What `do` returns, done on a lane; once more where an idle lane turns out to be dead (`fresh`: it has), or where
        the node doesn't know the keyspace. Raises MoonpoolError."""
        try:
            return self._attempt(do, deadline_s, fresh)
        except KeyspaceUnknown:
            if keyspace is None:
                raise
            spec = keyspace
        self._attempt(lambda lane: lane.register(RegisterKeyspace(spec), deadline_s), deadline_s)
        return self._attempt(do, deadline_s)

    def exchange_all(
        self,
        work: Shared,
        shares: Sequence[Share],
        keyspace: KeyspaceSpec | None,
        at_once: int,
        deadline_s: float,
    ) -> list[MoonpoolError]:
        """The same for the shares of some work, on up to `at_once` lanes where so many are free: what went wrong with
        those that failed. Raises MoonpoolError where no lane is to be had."""
        failures: list[MoonpoolError] = []
        left = list(shares)
        while left:
            if self.together:
                lanes = self._lend_free(min(at_once, len(left)), deadline_s)
                again = self._exchange_together(lanes, work, left[: len(lanes)], deadline_s, failures)
                left = left[len(lanes) :]
            else:
                again, left = [(left[0], False)], left[1:]
            for share, fresh in again:
                try:
                    self.exchange(partial(work.alone, share, deadline_s), keyspace, deadline_s, fresh=fresh)
                except MoonpoolError as error:
                    failures.append(error)
        return failures

    def close(self) -> None:
        """Exchanges under way fail soon."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
            for lane in self._busy:
                lane.interrupt()
            self._changed.notify_all()
        for lane in free:
            lane.close()

    def _exchange_together(
        self,
        lanes: list[Borrowed],
        work: Shared,
        shares: Sequence[Share],
        deadline_s: float,
        failures: list[MoonpoolError],
    ) -> list[tuple[Share, bool]]:
        """Returns what is to be tried once more, and whether on a fresh lane."""
        errors: list[Exception | None] = []
        start_s = time.monotonic()
        try:
            errors = work.together(lanes, shares, deadline_s)
        finally:  # after any error a lane's stream is out of step
            for number, (lane, _) in enumerate(lanes):
                self._give_back(lane, number < len(errors) and errors[number] is None)
        again: list[tuple[Share, bool]] = []
        if not any(errors):  # the usual case
            return again
        for (lane, idle), share, error in zip(lanes, shares, errors, strict=True):
            died = isinstance(error, BrokenPipeError | ConnectionResetError) and idle and not lane.started
            if died or isinstance(error, KeyspaceUnknown):
                again.append((share, died))
            elif error is not None:
                failures.append(self._explain(error, start_s))
        return again

    def _explain(self, error: Exception, start_s: float) -> MoonpoolError:
        if isinstance(error, TimeoutError):
            waited_s = time.monotonic() - start_s
            return DeadlineExceeded(peer=self.address, what="a transfer", timeout_s=waited_s)
        if isinstance(error, OSError):
            return RpcFailed(peer=self.address, reason=error.strerror or str(error))
        assert isinstance(error, MoonpoolError)
        return error

    def _attempt(self, do: Callable[[Lane], Answer], deadline_s: float, fresh: bool = False) -> Answer:
        start_s = time.monotonic()
        try:
            try:
                return self._once(do, deadline_s, fresh)
            except _DiedIdle:
                return self._once(do, deadline_s, fresh=True)
        except OSError as error:
            raise self._explain(error, start_s) from error

    def _once(self, do: Callable[[Lane], Answer], deadline_s: float, fresh: bool) -> Answer:
        """Raises OSError, and _DiedIdle where an idle lane broke before a byte of an answer came."""
        lane, idle = self._lend(self._take(deadline_s, fresh=fresh), deadline_s)
        healthy = False
        try:
            answer = do(lane)
            healthy = True
            return answer
        except (BrokenPipeError, ConnectionResetError) as error:
            if idle and not lane.started:
                raise _DiedIdle from error
            raise
        finally:
            self._give_back(lane, healthy)  # after any error its stream is out of step

    def _lend_free(self, count: int, deadline_s: float) -> list[Borrowed]:
        """One lane, and up to `count` of them where nobody has to be waited for. Raises MoonpoolError."""
        start_s = time.monotonic()
        try:
            lanes = [self._lend(self._take(deadline_s, look=False), deadline_s)]
        except OSError as error:
            raise self._explain(error, start_s) from error
        if count == 1:
            return lanes
        with suppress(OSError, MoonpoolError):
            while len(lanes) < count:
                lanes.append(self._lend(self._take(0.0, look=False), deadline_s))
        return lanes

    def _lend(self, idle: Lane | None, deadline_s: float) -> Borrowed:
        """The lane that was taken, or a fresh one. Raises as `_open`."""
        return (idle, True) if idle is not None else (self._open(deadline_s), False)

    def _open(self, deadline_s: float) -> Lane:
        """A fresh lane in the room that was taken. Raises OSError, MoonpoolError: the room was given back then."""
        lane: Lane | None = None
        try:
            lane = Lane(self.address, self._hello, deadline_s, self._credentials)
            with self._lock:
                if self._closed:
                    raise Closed(what=f"the lanes to {self.address}")
                self._busy.append(lane)
        except BaseException:
            self._give_back(lane, False)
            raise
        return lane

    def _take(self, deadline_s: float, *, fresh: bool = False, look: bool = True) -> Lane | None:
        """Room for a lane, and an idle one if there is one. `look`: one that still looks alive."""
        with self._lock:
            while self._taken >= self._size_max and not self._closed:
                self._wait(deadline_s)
            if self._closed:
                raise Closed(what=f"the lanes to {self.address}")
            self._taken += 1
            idle = self._free
            while idle:
                lane = idle.pop()
                if not fresh and not (look and lane.stale):
                    self._busy.append(lane)
                    return lane
                lane.close()
            return None

    def _wait(self, deadline_s: float) -> None:
        """Until a lane is given back, under the lock. Raises TimeoutError."""
        left_s = deadline_s - time.monotonic()
        self._waiting += 1
        try:
            if left_s <= 0 or not self._changed.wait(left_s):
                raise TimeoutError("all lanes are busy")
        finally:
            self._waiting -= 1

    def _give_back(self, lane: Lane | None, healthy: bool) -> None:
        with self._lock:
            self._taken -= 1
            if lane in self._busy:
                self._busy.remove(lane)
            keep = healthy and not self._closed and lane is not None
            if keep and lane is not None:
                self._free.append(lane)
            if self._waiting:
                self._changed.notify()
        if lane is not None and not keep:
            lane.close()
