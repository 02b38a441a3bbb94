"""What all servers of benchmarks have in common: a process that is started, awaited, and ended by all means."""

from __future__ import annotations

import os
import random
import socket
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from moonpool.schemas.errors import RpcFailed
from moonpool.store_client.children import start_child, stop_child

START_TIMEOUT_S = 60.0
PORTS = range(20_000, 32_000)
"""No outgoing connection takes these: a port that is free now is free a moment later too."""


class ServerProcess:
    """Up when `with` has begun, and gone when it ends."""

    GRACE_S = 5.0
    """Between SIGTERM and SIGKILL."""

    def command(self) -> Sequence[str]:
        """What starts it."""
        raise NotImplementedError

    def is_up(self, said: str) -> bool:
        """Whether it serves. `said`: its output so far."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        self._process = start_child(
            self.command(), environment=dict(os.environ), stdout=self._log, stderr=self._log
        )
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self.is_up(said := self._said()):
            if self._process.poll() is not None or time.monotonic() > end_s:
                self.__exit__(None, None, None)
                raise RpcFailed(peer=" ".join(self.command()), reason=f"did not start:\n{said}")
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_child(self._process, grace_s=self.GRACE_S)
        self._log.close()

    def _said(self) -> str:
        return os.pread(self._log.fileno(), 1 << 16, 0).decode(errors="replace")

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()


def free_port() -> int:
    """One that nobody listens on, for servers that can't be asked which one they got."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RpcFailed(peer="127.0.0.1", reason="no port is free")
