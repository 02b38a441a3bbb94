"""Child processes that never outlive their parent, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

START_TIMEOUT_S = 120.0
LAY_OUT_BYTES_A_S_MIN = 128 << 20
"""How fast a node has its memory at least: 2 GB/s and more are usual, 230 MB/s were seen in a virtual machine whose free
memory was in pieces."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: the child may only make the call


def start_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a process that the kernel ends with SIGTERM when the calling *thread* ends, SIGKILL included.

    It gets a process group of its own, so that Ctrl-C reaches the parent alone, who then stops its children in order.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended between fork and prctl
            os._exit(1)

    return subprocess.Popen(
        command,
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        process_group=0,
        preexec_fn=die_with_parent,  # noqa: PLW1509 (one system call, on a library loaded before)
    )


def start_timeout_s(size_bytes: int) -> float:
    """How long a node with so much memory may take until it serves."""
    return START_TIMEOUT_S + size_bytes / LAY_OUT_BYTES_A_S_MIN


def stop_child(process: subprocess.Popen[bytes], grace_s: float = 5.0) -> int:
    """SIGTERM, then after `grace_s` SIGKILL. Returns the exit code. Safe to call twice."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
