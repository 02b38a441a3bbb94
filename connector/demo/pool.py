"""A pool of the demo's own: `moonpool serve` on free ports, with its memory in a folder that goes with it."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moonpool.schemas.errors import DeadlineExceeded, RpcFailed
from moonpool.schemas.units import format_size
from moonpool.store_client.children import start_child, stop_child

SIZE_BYTES = 1 << 30
START_TIMEOUT_S = 60.0
MEMORY = Path("/dev/shm")


class DemoPool:
    """Started by `with`; its master's address is in `master`, that of the REST interface (or nothing) in `http`."""

    def __init__(self, fallback: Path, log: Path) -> None:
        self._fallback = fallback
        self._log = log
        self.master = ""
        self.http = ""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="moonpool-demo-", dir=self._segment_parent()))
        with self._log.open("wb") as stream:
            self._process = start_child(self._command(), stdout=subprocess.PIPE, stderr=stream)
        try:
            addresses = self._read_addresses()
            self.master, self.http = str(addresses["master"]), str(addresses["http"])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_child(self._process, grace_s=10.0)
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _segment_parent(self) -> Path:
        """Shared memory, or a folder on a disk where that is too small (a container's has 64 MB)."""
        if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > SIZE_BYTES + (64 << 20):
            return MEMORY
        return self._fallback

    def _command(self) -> list[str]:
        flags = {
            "--port": "0",
            "--size": str(SIZE_BYTES),
            "--name": f"demo-{os.getpid()}",
            "--segment-dir": str(self._folder),
            "--store": "memory",
        }
        words = [word for flag in flags.items() for word in flag]
        return [sys.executable, "-m", "moonpool.store_client.cli.main", "serve", "--json", *words]

    def _read_addresses(self) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], START_TIMEOUT_S)[0]:
            raise DeadlineExceeded(peer="moonpool serve", what="its start", timeout_s=START_TIMEOUT_S)
        line = pipe.readline()
        if not line:
            said = self._log.read_text(errors="replace")[-1500:]
            raise RpcFailed(
                peer="moonpool serve", reason=f"it did not start with {format_size(SIZE_BYTES)}:\n{said}"
            )
        addresses: dict[str, Any] = json.loads(line)
        return addresses
