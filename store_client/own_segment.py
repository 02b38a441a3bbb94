"""DRAM that a client contributes: a node in a child process that ends with its parent."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

from moonpool.schemas.config import ClientSettings

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
LOOK_S = 0.2

# The child asks the kernel for SIGTERM at its parent's end (1: PR_SET_PDEATHSIG), then looks whether that was before.
_CHILD = """
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)
if os.getppid() == int(sys.argv.pop(1)):
    runpy.run_module("moonpool.store_client.node", run_name="__main__", alter_sys=True)
"""


class OwnSegment:
    """The child, and the thread that started it: to the kernel, that thread is the child's parent."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moonpool-segment", daemon=True)
        self._thread.start()

    @staticmethod
    def start(settings: ClientSettings) -> OwnSegment:
        """Starts a node of `settings.segment_size` and returns at once; it announces itself to the master."""
        return OwnSegment(
            [
                *("--master", settings.master),
                *("--size", str(settings.segment_size)),
                *("--run-dir", settings.run_dir),
                *("--name", f"client-{os.getpid()}"),
            ]
        )

    def close(self) -> None:
        """Ends the child. Its segment goes with it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        command = [sys.executable, "-c", _CHILD, str(os.getpid()), *self._arguments]
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            log.error("cannot start a node for this process's segment: %s", error)
            return
        while not self._stop.wait(LOOK_S):
            if child.poll() is not None:
                log.error("the node of this process's segment ended with code %d", child.returncode)
                return
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
