"""A node's lanes, shared by the threads of a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from moonpool.schemas.errors import Closed, DeadlineExceeded, KeyspaceUnknown, RpcFailed
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Hello, RegisterKeyspace
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.transports.lane import Lane

Answer = TypeVar("Answer")


class _DiedIdle(Exception):
    """A fresh lane may do."""


class LanePool:
    """At most `size_max` connections to one node, each taken for one exchange at a time."""

    def __init__(
        self, address: str, hello: Hello, size_max: int, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        self.address = address
        self._credentials = credentials
        self._hello = hello
        self._size_max = size_max
        self._changed = threading.Condition()
        self._free: list[Lane] = []
        self._busy: list[Lane] = []
        self._taken = 0
        self._closed = False

    def exchange(
        self, do: Callable[[Lane], Answer], keyspace: KeyspaceSpec | None, deadline_s: float
    ) -> Answer:
        """What `do` returns, done on a lane; once more where an idle lane turns out to be dead, or where the node
        doesn't know the keyspace. Raises MoonpoolError."""
        try:
            return self._attempt(do, deadline_s)
        except KeyspaceUnknown:
            if keyspace is None:
                raise
            spec = keyspace
        self._attempt(lambda lane: lane.register(RegisterKeyspace(spec), deadline_s), deadline_s)
        return self._attempt(do, deadline_s)

    def close(self) -> None:
        """Exchanges under way fail soon."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            for lane in self._busy:
                lane.interrupt()
            self._changed.notify_all()
        for lane in free:
            lane.close()

    def _attempt(self, do: Callable[[Lane], Answer], deadline_s: float) -> Answer:
        start_s = time.monotonic()
        try:
            try:
                return self._once(do, deadline_s)
            except _DiedIdle:
                return self._once(do, deadline_s, fresh=True)
        except TimeoutError as error:
            waited_s = time.monotonic() - start_s
            raise DeadlineExceeded(peer=self.address, what="a transfer", timeout_s=waited_s) from error
        except OSError as error:
            raise RpcFailed(peer=self.address, reason=error.strerror or str(error)) from error

    def _once(self, do: Callable[[Lane], Answer], deadline_s: float, fresh: bool = False) -> Answer:
        """Raises OSError, and _DiedIdle where an idle lane broke before a byte of an answer came."""
        lane = self._take(deadline_s, fresh)
        reused = lane is not None
        healthy = False
        try:
            lane = lane or Lane(self.address, self._hello, deadline_s, self._credentials)
            with self._changed:
                self._busy.append(lane)
            answer = do(lane)
            healthy = True
            return answer
        except (BrokenPipeError, ConnectionResetError) as error:
            if reused and lane is not None and not lane.started:
                raise _DiedIdle from error
            raise
        finally:
            self._give_back(lane, healthy)  # after any error its stream is out of step

    def _take(self, deadline_s: float, fresh: bool) -> Lane | None:
        """Room for a lane, and an idle one that still looks alive if there is one."""
        with self._changed:
            while self._taken >= self._size_max and not self._closed:
                if not self._changed.wait(deadline_s - time.monotonic()):
                    raise TimeoutError("all lanes are busy")
            if self._closed:
                raise Closed(what=f"the lanes to {self.address}")
            self._taken += 1
            idle = self._free
            while idle:
                lane = idle.pop()
                if not fresh and not lane.stale:
                    return lane
                lane.close()
            return None

    def _give_back(self, lane: Lane | None, healthy: bool) -> None:
        with self._changed:
            self._taken -= 1
            if lane in self._busy:
                self._busy.remove(lane)
            keep = healthy and not self._closed and lane is not None
            if keep and lane is not None:
                self._free.append(lane)
            self._changed.notify()
        if lane is not None and not keep:
            lane.close()
