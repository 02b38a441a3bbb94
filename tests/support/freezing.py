"""SIGSTOP and SIGCONT. A signal is only sent by kill(2): a busy process answers for a while longer."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

STOP_TIMEOUT_S = 60.0
STOPPED = {"T", "Z", "X"}
"""States of a thread that runs no more, as in proc(5)."""


def freeze(pid: int) -> None:
    """SIGSTOP: its sockets stay open, nothing is answered. Returns when every thread of it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    end_s = time.monotonic() + STOP_TIMEOUT_S
    while any(state not in STOPPED for state in thread_states(pid)):
        assert time.monotonic() < end_s, "it does not stop"
        time.sleep(0.001)


def thaw(pid: int) -> None:
    """SIGCONT."""
    os.kill(pid, signal.SIGCONT)


def thread_states(pid: int) -> list[str]:
    """One letter for each thread that it has."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return states
