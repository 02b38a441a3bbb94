"""Whether a peer's engine is there and awake, asked with a deadline that the engine itself doesn't have.

Its first contact with a peer is a handshake that waits 60 s for a process that is stopped, with a lock held that
everybody else's calls need (measured). So nobody is contacted, or contacted again after a failure, who doesn't answer a
knock: a connection that says nothing and ends, which an engine closes at once.
"""

from __future__ import annotations

import socket
import threading
import time

from moonpool.schemas.errors import MoonpoolError
from moonpool.store_client.rpc.address import Address, dial

KNOCK_TIMEOUT_S = 1.0
AWAKE_MAX = 4096


def answers(session: str, timeout_s: float = KNOCK_TIMEOUT_S) -> bool:
    """Whether somebody closes a connection to "host:port" in time."""
    try:
        with dial(Address.parse(session), time.monotonic() + timeout_s) as sock:
            sock.settimeout(timeout_s)
            sock.shutdown(socket.SHUT_WR)
            return sock.recv(1) == b""
    except (OSError, MoonpoolError):
        return False


class Awake:
    """The peers that were contacted and haven't failed since. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: set[str] = set()

    def may_be_called(self, session: str) -> bool:
        """Knocks where that is needed; a second at most."""
        with self._lock:
            known = session in self._sessions
        return known or answers(session)

    def called(self, session: str, well: bool) -> None:
        """How a call went."""
        with self._lock:
            if not well:
                self._sessions.discard(session)
                return
            if len(self._sessions) >= AWAKE_MAX:
                self._sessions.clear()  # peers that are gone stay in it; the others cost a knock each
            self._sessions.add(session)
