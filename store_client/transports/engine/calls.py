"""Engine calls with a deadline: the engine's own wait takes seconds at least, and a core."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from moonpool.schemas.packed import U64
from moonpool.store_client.transports.engine.engine import Engine, Outcome

CALLS_AT_ONCE = 2
"""Of one client, whatever the peer: each waits busily, and more of them than cores are slower than one."""


class Calls:
    """Calls to one peer, in threads that are left behind at the deadline until the engine lets go of them."""

    def __init__(self, engine: Engine, turns: threading.Semaphore, session: str) -> None:
        """`turns`: of CALLS_AT_ONCE, shared by all peers. A call that is left behind holds none."""
        self._engine = engine
        self._turns = turns
        self._session = session
        self._pool = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="moonpool-engine")
        self._overdue: set[Future[Outcome]] = set()
        self._lock = threading.Lock()

    @property
    def stuck(self) -> bool:
        """Whether a call that was given up hasn't come back: there is no use in another one."""
        with self._lock:
            self._overdue = {call for call in self._overdue if not call.done()}
            return bool(self._overdue)

    def read(self, into: U64, source: U64, sizes: U64, deadline_s: float) -> Outcome:
        """As Engine.read, by the deadline."""
        if self.stuck or not self._turns.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            return Outcome.NOT_BEGUN
        try:
            call = self._pool.submit(self._engine.read, self._session, into, source, sizes)
            wait([call], max(0.0, deadline_s - time.monotonic()))
        finally:
            self._turns.release()
        if call.done():
            return call.result()
        if call.cancel():
            return Outcome.NOT_BEGUN
        with self._lock:
            self._overdue.add(call)
        return Outcome.UNCERTAIN

    def close(self) -> None:
        """Waits for calls that were left behind: some seconds at most."""
        self._pool.shutdown()
