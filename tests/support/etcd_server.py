"""Debian's etcd on free ports in a folder of its own, to be stopped, killed and frozen by tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moonpool.master.store.etcd import EtcdStore
from moonpool.master.store.etcd_link import EtcdAccess
from support import freezing
from support.ports import free_ports

START_TIMEOUT_S = 60.0
PASSWORD = "open, sesame"


class EtcdServer:
    """`with EtcdServer(folder) as etcd:`. `etcd.endpoint` is "127.0.0.1:port" and stays over restarts.

    `tls`: files (ca, cert, key); clients must show one that the ca has signed. `flags` are added as they are.
    `prefix`: of the command line, for a `host` that is a network namespace (see Network.command).
    """

    def __init__(
        self,
        folder: Path,
        *,
        tls: tuple[Path, Path, Path] | None = None,
        flags: Sequence[str] = (),
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        name: str = "one",
    ) -> None:
        self._name = name
        self.members = [self]
        """All that are one etcd together. Known to each before the first of them starts."""
        self._folder = folder
        self._tls = tls
        self._flags = list(flags)
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix = list(prefix)
        self._ports = [2379, 2380] if prefix else free_ports(2, host)
        self.token = ""

    @property
    def _peers(self) -> str:
        return f"http://{self._host}:{self._ports[1]}"

    @property
    def endpoint(self) -> str:
        """host:port of clients."""
        return f"{self._host}:{self._ports[0]}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Its data goes too."""
        self.kill()
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    def start(self) -> None:
        """Starts it, with the data that it had, and waits until it answers."""
        self.launch()
        try:
            self.wait_healthy()
        except BaseException:
            self.kill()
            raise

    def launch(self) -> None:
        """Starts it, and waits for nothing."""
        self._folder.mkdir(parents=True, exist_ok=True)
        scheme = "https" if self._tls else "http"
        words = ["etcd", "--name", self._name, "--data-dir", str(self._folder / "data"), "--logger", "zap"]
        words += ["--listen-client-urls", f"{scheme}://{self.endpoint}", "--listen-peer-urls", self._peers]
        words += ["--advertise-client-urls", f"{scheme}://{self.endpoint}"]
        words += ["--initial-advertise-peer-urls", self._peers]
        words += ["--initial-cluster", ",".join(f"{one._name}={one._peers}" for one in self.members)]
        words += ["--heartbeat-interval", "50", "--election-timeout", "500", *self._flags]
        if self._tls:
            ca, cert, key = map(str, self._tls)
            words += ["--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca, "--client-cert-auth"]
        with open(self._folder / "log", "ab") as output:
            self._process = subprocess.Popen(
                [*self._prefix, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def wait_healthy(self) -> None:
        """Until it answers."""
        assert self._process is not None
        end_s = time.monotonic() + START_TIMEOUT_S
        while True:
            if self.is_up():
                return
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise AssertionError(f"etcd did not come up:\n{(self._folder / 'log').read_text()[-3000:]}")
            time.sleep(0.05)

    def enable_auth(self, user: str = "moonpool", prefix: bytes = b"/moonpool/") -> None:
        """From now on only `root` and this user may do anything, the user only under `prefix`."""
        for name in ("root", user):
            self.ask("auth/user/add", name=name, password=PASSWORD)
            self.ask("auth/role/add", name=name)
            self.ask("auth/user/grant", user=name, role=name)
        first, end = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
        keys = {"key": b64encode(first).decode(), "range_end": b64encode(end).decode()}
        self.ask("auth/role/grant", name=user, perm={"permType": "READWRITE", **keys})
        self.ask("auth/enable")
        self.token = self.ask("auth/authenticate", name="root", password=PASSWORD)["token"]

    def ask(self, path: str, **fields: Any) -> dict[str, Any]:
        """A call by its JSON gateway, as root where users are needed."""
        return self._http("POST", f"/v3/{path}", json.dumps(fields))

    def _http(self, method: str, path: str, body: str = "") -> dict[str, Any]:
        host, port = self._host, self._ports[0]
        connection: http.client.HTTPConnection
        if self._tls:
            ca, cert, key = self._tls
            context = ssl.create_default_context(cafile=ca)
            context.load_cert_chain(cert, key)
            connection = http.client.HTTPSConnection(host, port, timeout=10, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Authorization": self.token} if self.token else {})
            response = connection.getresponse()
            said = response.read()
            assert response.status < 500 or path == "/health", said
            found: dict[str, Any] = json.loads(said)
            assert response.status == 200 or path == "/health", found
            return found

    def size_bytes(self) -> tuple[int, int]:
        """Of its database: as a file, and in use."""
        said = self.ask("maintenance/status")
        return int(said["dbSize"]), int(said["dbSizeInUse"])

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it hasn't ended."""
        return self._process is not None and self._process.poll() is None

    def is_up(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return bool(self._http("GET", "/health").get("health") == "true")
        return False

    def freeze(self) -> None:
        """SIGSTOP. Returns when nothing is answered any more."""
        freezing.freeze(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        freezing.thaw(self.pid)

    def stop(self) -> None:
        """SIGTERM."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def kill(self) -> None:
        """SIGKILL, frozen or not; nothing where it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)


def open_etcd(server: EtcdServer, prefix: bytes = b"/moonpool/test/", **access: str) -> EtcdStore:
    """A store on that server; `access` are fields of EtcdAccess. To be called in an event loop."""
    return EtcdStore(EtcdAccess((server.endpoint,), **access), prefix)
