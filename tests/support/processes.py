"""Servers in processes of their own, to be stopped, killed, frozen and started again by tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import GetStatus, Hello, NodeInfo, StatusReport, decode_from_node
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS
from support import freezing
from support.ports import free_ports
from support.waiting import PATIENCE_S, soon

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


class ServerProcess:
    """`python <arguments>`, started by `with`, killed at its end whatever has happened.

    It is up when its output says "listening on <address>". Subclasses name their flags in `arguments`.
    """

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        self._arguments = list(arguments)
        self.address = ""
        """What it last said that it listens on."""
        self.prefix: list[str] = []
        """Of the command line: where it runs (see Network.command)."""
        self.environment: dict[str, str] = {}
        """Beside that of this process."""
        self.pids: list[int] = []
        """Of all starts."""

    def arguments(self) -> list[str]:
        """Of the next start."""
        return self._arguments

    def __enter__(self) -> Self:
        self._output = tempfile.TemporaryFile()
        try:
            self.start()
        except BaseException:
            self._output.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._output.close()

    def start(self) -> None:
        """Starts it and waits until it is up. Raises AssertionError with its output where it isn't soon."""
        self.launch()
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self.is_up():
            if self._process.poll() is not None or time.monotonic() > end_s:
                self.kill()
                raise AssertionError(f"{self.arguments()} did not come up:\n{self.output()[self._seen :]}")
            time.sleep(0.005)

    def launch(self) -> None:
        """Starts it, and waits for nothing."""
        self._seen = len(self.output())
        self._process = subprocess.Popen(
            [*self.prefix, sys.executable, *self.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=os.environ | self.environment,
        )
        self.pids.append(self._process.pid)

    def is_up(self) -> bool:
        """Whether it listens, as far as it has said since it was started."""
        found = re.search(r"listening on (\S+)", self.output()[self._seen :])
        if found:
            self.address = found[1]
        return found is not None

    def stop(self) -> int:
        """SIGTERM. Returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, frozen or not; nothing where it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)

    def freeze(self) -> None:
        """SIGSTOP: its sockets stay open, nothing is answered. Returns when every thread has stopped."""
        freezing.freeze(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        freezing.thaw(self.pid)

    @property
    def pid(self) -> int:
        """Of the last start."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it hasn't ended."""
        return self._process.poll() is None

    def output(self) -> str:
        """Everything it has said so far, of all starts."""
        size_bytes = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size_bytes, 0).decode(errors="replace")

    def resident_bytes(self) -> int:
        """Memory that it holds."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def descriptors(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class MasterProcess(ServerProcess):
    """`python -m moonpool.master` on a free port, which later starts keep.

    Not on one of the kernel's choice: while a master is away, an outgoing connection could get that one.
    """

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        super().__init__(arguments)
        (self.port,) = free_ports(1)

    def arguments(self) -> list[str]:
        return ["-m", "moonpool.master", "--host", "127.0.0.1", "--port", str(self.port), *self._arguments]


class NodeProcess(ServerProcess):
    """`python -m moonpool.store_client.node` on ports, a segment and a run folder of its own; a later start adopts
    the segment. `settings`: fields of NodeSettings."""

    def __init__(self, master: ServerProcess | str, *, size: int = 64 << 20, **settings: object) -> None:
        super().__init__()
        self._master = master
        self._folder = ""
        self._settings = {"size": size, **settings}
        self.credentials = NO_CREDENTIALS
        """Shown when its counters are asked for."""

    def __enter__(self) -> Self:
        # Of this test alone, so that the folder's end is the end of every segment in it.
        self._folder = tempfile.mkdtemp(prefix="moonpool-test-", dir="/dev/shm")
        try:
            return super().__enter__()
        except BaseException:
            shutil.rmtree(self._folder)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        shutil.rmtree(self._folder)

    def arguments(self) -> list[str]:
        master = self._master if isinstance(self._master, str) else self._master.address
        folders = {"segment_dir": self._folder, "run_dir": f"{self._folder}/run"}
        settings = {"master": master, **folders, **self._settings}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        return [
            "-m",
            "moonpool.store_client.node",
            f"--ready-file={self._folder}/ready",
            *flags,
            *self._arguments,
        ]

    @property
    def info(self) -> NodeInfo:
        """What the node last told of its doors."""
        facts = json.loads(Path(self._folder, "ready").read_bytes())
        return NodeInfo(**facts | {"segment": bytes.fromhex(facts["segment"])})

    @property
    def run_dir(self) -> str:
        """Its settings' run folder."""
        return f"{self._folder}/run"

    @property
    def segment_file(self) -> str:
        """Path of its segment."""
        (path,) = Path(self._folder).glob("*.segment")
        return str(path)

    def status(self) -> dict[str, int | float | str]:
        """The node's own counters."""
        hello = Hello(PROTOCOL_VERSION, "client", "test")
        connection = RpcConnection(self.address, hello, decode_from_node, self.credentials)
        try:
            reply = connection.call(GetStatus(), soon())
        finally:
            connection.close()
        assert isinstance(reply, StatusReport)
        return reply.facts

    def wait_for(self, fact: str, value: object, timeout_s: float = PATIENCE_S) -> None:
        """Until that counter has that value."""
        end_s = time.monotonic() + timeout_s
        while (found := self.status()[fact]) != value:
            assert time.monotonic() < end_s, f"{fact} is {found}, not {value}"
            time.sleep(0.01)
