"""Mooncake's own master and Moonpool's, behind the same few calls, so that one test can ask both."""

from __future__ import annotations

import ctypes
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from support import freezing
from support.mooncake_differences import DIFFERENCES
from support.ports import free_ports
from support.processes import MasterProcess

SEGMENT_BYTES = 64 << 20
BUFFER_BYTES = 16 << 20
START_TIMEOUT_S = 120.0
LEASE_TTL_MS = 2000

# Read when the library is loaded. Whatever it still says is Mooncake's way of saying what a return code says too.
os.environ.update(MC_LOG_LEVEL="ERROR", MC_YLT_LOG_LEVEL="critical")


class Master(Protocol):
    """A master in a process of its own."""

    @property
    def address(self) -> str: ...

    def kill(self) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


class MooncakeMaster:
    """mooncake_master on free ports, ended with the `with` block."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags

    def __enter__(self) -> Self:
        port, metrics = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile()
        binary = Path(sys.executable).with_name("mooncake_master")
        self._process = subprocess.Popen(
            [
                str(binary),
                f"--rpc_port={port}",
                f"--metrics_port={metrics}",
                "--minloglevel=3",
                f"--default_kv_lease_ttl={LEASE_TTL_MS}",
                *self._flags,
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        end_s = time.monotonic() + START_TIMEOUT_S
        while not _listens(port):
            assert self._process.poll() is None and time.monotonic() < end_s, self.output()
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.kill()
        self._log.close()

    def output(self) -> str:
        """What it has said."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP. Returns when nothing is answered any more."""
        freezing.freeze(self._process.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        freezing.thaw(self._process.pid)


class Pool:
    """A master of one kind, the module that its clients import, and their stores."""

    def __init__(self, kind: str, *, flags: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self._flags = flags if kind == "mooncake" else ()
        self._stack = ExitStack()
        self.master: Master

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            master: Any = MooncakeMaster(*self._flags) if self.ours is False else MasterProcess()
            self.master = stack.enter_context(master)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def ours(self) -> bool:
        """Whether it is Moonpool."""
        return self.kind == "moonpool"

    @property
    def module(self) -> ModuleType:
        """What clients import from."""
        return importlib.import_module("moonpool.store_client.mooncake" if self.ours else "mooncake.store")

    def store(self, size_bytes: int = SEGMENT_BYTES, *, timeout_s: float = 20.0) -> Any:
        """A store that contributes so much. Closed with the pool. `timeout_s`: of its calls; Mooncake's has its own."""
        store = self.module.MooncakeDistributedStore()
        with patch.dict(os.environ, patience(timeout_s)):
            assert store.setup(*self.setup_arguments(size_bytes)) == 0
        self._stack.callback(store.close)
        return store

    def setup_arguments(self, size_bytes: int = SEGMENT_BYTES) -> tuple[object, ...]:
        """Of setup's first form."""
        return ("127.0.0.1", "P2PHANDSHAKE", size_bytes, BUFFER_BYTES, "tcp", "", self.master.address)

    def config(self, **fields: object) -> Any:
        """A ReplicateConfig."""
        config = self.module.ReplicateConfig()
        for name, value in fields.items():
            setattr(config, name, value)
        return config

    def expected(self, difference: str, *, mooncake: Any, moonpool: Any) -> Any:
        """What this kind answers where the two differ on purpose."""
        assert difference in DIFFERENCES
        return moonpool if self.ours else mooncake

    def allowed(self, difference: str, *, mooncake: tuple[Any, ...], moonpool: Any) -> tuple[Any, ...]:
        """The same where Mooncake's answer hangs on its leases, pings and threads, so on how slow the machine is."""
        return (self.expected(difference, mooncake=None, moonpool=moonpool),) if self.ours else mooncake


def patience(timeout_s: float = 20.0) -> dict[str, str]:
    """Variables of a process whose Moonpool store waits for slow servers, also where it has to make room first."""
    return {"MOONPOOL_CLIENT_TIMEOUT_S": str(timeout_s), "MOONPOOL_NODE_BEGIN_WAIT_S": "5"}


class Memory:
    """Memory that a store has registered, full of bytes that differ from place to place."""

    def __init__(self, size_bytes: int) -> None:
        self.bytes: NDArray[np.uint8] = np.arange(size_bytes, dtype=np.uint64).astype(np.uint8)
        self.bytes += (np.arange(size_bytes, dtype=np.uint64) >> np.uint64(8)).astype(np.uint8)
        self.address = self.bytes.ctypes.data

    def at(self, offset: int, size_bytes: int) -> bytes:
        """What lies there."""
        return ctypes.string_at(self.address + offset, size_bytes)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
