"""DRAM that a client contributes: a node in a child process that ends with its parent."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

from moonpool.schemas.config import ClientSettings
from moonpool.store_client.children import start_child, stop_child

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
LOOK_S = 0.2
"""How often the child is looked at: it may also end by itself."""


class OwnSegment:
    """The child, and a thread that started it and waits for it: the child dies with that thread."""

    def __init__(self, arguments: list[str], settings: ClientSettings) -> None:
        """`arguments`: flags of the node beside those of access, which are the client's.

        Its token is that of MOONPOOL_NODE_TOKEN or MOONPOOL_NODE_TOKEN_FILE where there is one, else the client's,
        whose role must then be one that may contribute memory.
        """
        self._arguments = [*arguments, "--forget", *_tls_flags(settings)]
        self._environment = dict(os.environ)
        if not self._environment.keys() & {"MOONPOOL_NODE_TOKEN", "MOONPOOL_NODE_TOKEN_FILE"}:
            self._environment["MOONPOOL_NODE_TOKEN"] = settings.token
            self._environment["MOONPOOL_NODE_TOKEN_FILE"] = settings.token_file
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
            ],
            settings,
        )

    @property
    def running(self) -> bool:
        """Whether the child hasn't ended by itself, as far as was looked."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the child. Its segment goes with it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        command = [sys.executable, "-m", "moonpool.store_client.node", *self._arguments]
        try:
            child = start_child(
                command, environment=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        except OSError as error:
            log.error("cannot start a node for this process's segment: %s", error)
            return
        while not self._stop.wait(LOOK_S):
            if child.poll() is not None:
                log.error("the node of this process's segment ended with code %d", child.returncode)
                return
        stop_child(child, STOP_TIMEOUT_S)


def _tls_flags(settings: ClientSettings) -> list[str]:
    """A node has a certificate of its own or speaks plain text: it can't show the one of a client that has none."""
    flags = ["--tls-ca", settings.tls_ca] if settings.tls_ca else []
    if settings.tls_cert:
        flags += ["--tls-cert", settings.tls_cert, "--tls-key", settings.tls_key]
    etcd = ("etcd_user", "etcd_password_file", "etcd_ca", "etcd_cert", "etcd_key")
    flags += [f"--{name.replace('_', '-')}={getattr(settings, name)}" for name in etcd]
    return [*flags, "--tls-verify-host", str(settings.tls_verify_host)]
