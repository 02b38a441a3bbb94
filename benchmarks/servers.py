"""Real servers for benchmarks: processes on free ports of the loopback interface."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from moonpool.benchmarks.processes import ServerProcess


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


class Server(ServerProcess):
    """`python -m <module> <flags>`; `address` is what it says it listens on."""

    def __init__(self, module: str, flags: Sequence[str]) -> None:
        self._words = [sys.executable, "-m", module, *flags]
        self.address = ""

    def command(self) -> Sequence[str]:
        """See ServerProcess."""
        return self._words

    def is_up(self, said: str) -> bool:
        """See ServerProcess."""
        found = re.search(r"listening on (\S+)", said)
        if found:
            self.address = found[1]
        return found is not None


class MasterServer(Server):
    """A master. `near`: whether clients and nodes may leave tcp, all being on its host."""

    def __init__(self, port: str = "0", *, near: bool = True) -> None:
        super().__init__("moonpool.master", ["--port", port, "--near-door", str(near).lower()])


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
