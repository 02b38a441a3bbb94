"""The answer to a put over a data lane that is to be visible: sent by whoever hears that it is.

That is the event loop's thread. To wake the lane's thread first, and to let it into the interpreter, takes as long as the
master took.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

from moonpool.schemas.errors import Unavailable
from moonpool.store_client.node.reports import Surplus
from moonpool.store_client.node.seen_puts import Generations, with_surplus, without_proof


class LaneAnswer:
    """Of one put. `frame`: what says so, made of the Status bytes. The socket is a blocking one, and the lane's thread, which
    owns it, sends nothing until `wait` has returned True."""

    __slots__ = ("_frame", "_generations", "_sock", "_statuses", "_told", "_usual", "left")

    def __init__(
        self, sock: socket.socket, frame: Callable[[bytes], bytes], statuses: bytes, generations: Generations
    ) -> None:
        self._sock = sock
        self._frame = frame
        self._statuses = statuses
        self._generations = generations
        self._usual = frame(statuses)  # made while the master is at it
        self._told = threading.Lock()
        self._told.acquire()
        self.left: memoryview | bytes = b""
        """What could not be sent at once, for the lane's thread."""

    def seen(self, outcome: Surplus | Unavailable) -> None:
        """See Seen."""
        frame = self._usual
        if isinstance(outcome, Unavailable):  # of a direct put: another stream began
            frame = self._frame(without_proof([self._statuses])[0])
        elif outcome:
            frame = self._frame(with_surplus([self._statuses], self._generations, outcome)[0])
        sent = 0
        if not isinstance(self._sock, ssl.SSLSocket):
            with suppress(OSError):  # full or broken: the lane's thread finds out
                sent = self._sock.send(frame, socket.MSG_DONTWAIT)
        self.left = memoryview(frame)[sent:]
        self._told.release()

    def wait(self, timeout_s: float) -> bool:
        """Whether it was told by then. By the lane's thread."""
        return self._told.acquire(timeout=timeout_s)
