"""Real servers for benchmarks: processes on free ports of the loopback interface."""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from moonpool.schemas.errors import RpcFailed
from moonpool.store_client.children import start_child, stop_child

START_TIMEOUT_S = 60.0


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


class Server:
    """`python -m <module> <flags>` between `with` and its end; `address` is what it says it listens on."""

    def __init__(self, module: str, flags: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", module, *flags]
        self.address = ""

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        self._process = start_child(
            self._command, environment=dict(os.environ), stdout=self._log, stderr=self._log
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.address:
            said = os.pread(self._log.fileno(), 1 << 16, 0).decode(errors="replace")
            found = re.search(r"listening on (\S+)", said)
            if found:
                self.address = found[1]
            elif self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise RpcFailed(peer=" ".join(self._command[1:]), reason=f"did not start:\n{said}")
            else:
                time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_child(self._process, grace_s=5.0)
        self._log.close()

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()


class MasterServer(Server):
    """A master."""

    def __init__(self, port: str = "0") -> None:
        super().__init__("moonpool.master", ["--port", port])


class NodeServer(Server):
    """A node of that master."""

    def __init__(self, master: str, size_bytes: int, run_dir: str, *, checksums: bool = True) -> None:
        flags = {
            "--master": master,
            "--name": f"bench-{secrets.token_hex(4)}",
            "--size": str(size_bytes),
            "--run-dir": run_dir,
            "--checksums": str(checksums).lower(),
        }
        super().__init__(
            "moonpool.store_client.node", [*(x for flag in flags.items() for x in flag), "--forget"]
        )
