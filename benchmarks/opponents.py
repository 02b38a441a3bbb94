"""Servers of other stores, on free ports of the loopback interface, with the settings that suit them best."""

from __future__ import annotations

import importlib.util
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from moonpool.benchmarks.processes import ServerProcess, free_port

MOONCAKE_ENVIRONMENT = {
    "MC_LOG_LEVEL": "ERROR",
    "MC_YLT_LOG_LEVEL": "critical",
    "MC_STORE_MEMCPY": "1",
    # With the defaults a remote call of more than about 1,024 fragments fails.
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": "65535",
    "MC_TCP_ADMISSION_TIMEOUT_MS": "600000",
}
"""Read when Mooncake's library is loaded."""

MOONCAKE_POOLS: Mapping[str, Mapping[str, str]] = {
    "mooncake": {"MC_TCP_ENABLE_CONNECTION_POOL": "0"},
    "mooncake-pool": {"MC_TCP_ENABLE_CONNECTION_POOL": "1"},
}
"""Which one is faster differs from shape to shape: both run, and each case counts the better one."""


def mooncake_is_here() -> bool:
    """Whether its wheel is installed."""
    return importlib.util.find_spec("mooncake") is not None


def redis_is_here() -> bool:
    """Whether its server and a client are installed."""
    return bool(shutil.which("redis-server")) and importlib.util.find_spec("redis") is not None


class OtherServer(ServerProcess):
    """A server that is up when its port takes connections."""

    GRACE_S = 2.0

    def __init__(self, port: int = 0) -> None:
        self.port = port or free_port()

    def is_up(self, said: str) -> bool:
        """See ServerProcess."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class MooncakeMaster(OtherServer):
    """mooncake_master. Leases are shorter than its default, so that a full pool may evict. `flags`: further ones."""

    def __init__(self, port: int = 0, flags: Sequence[str] = ()) -> None:
        super().__init__(port)
        self._flags = flags
        self.address = f"127.0.0.1:{self.port}"
        self._metrics_port = free_port()

    def command(self) -> Sequence[str]:
        """See ServerProcess."""
        return [
            str(_package("mooncake") / "mooncake_master"),
            f"--rpc_port={self.port}",
            f"--metrics_port={self._metrics_port}",
            "--minloglevel=3",
            "--default_kv_lease_ttl=5000",
            *self._flags,
        ]


class RedisServer(OtherServer):
    """redis-server that writes nothing to a disk."""

    def command(self) -> Sequence[str]:
        """See ServerProcess."""
        return ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no"]


class EtcdServer(OtherServer):
    """One etcd, with its data in a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self._peers = f"http://127.0.0.1:{free_port()}"

    def command(self) -> Sequence[str]:
        """See ServerProcess."""
        clients = f"http://127.0.0.1:{self.port}"
        words = ["etcd", "--name", "bench", "--data-dir", f"{self._folder}/etcd"]
        words += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        words += ["--listen-peer-urls", self._peers, "--initial-advertise-peer-urls", self._peers]
        return [*words, "--initial-cluster", f"bench={self._peers}"]


def _package(name: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
