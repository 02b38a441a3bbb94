"""Two masters over a real etcd, with tokens, TLS and REST interfaces, and a node."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import Status
from moonpool.store_client import StoreClient
from moonpool.store_client.objects import hashes_of
from support.etcd_server import EtcdServer
from support.guarded import TOKENS, Certificates, write_tokens
from support.ports import free_ports
from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

KEYS = [f"object {i}" for i in range(40)]
KEYS_AS_VALUES = [key.encode() for key in KEYS]
KEYSPACE = objects_keyspace("red").digest().hex()
HASHES = [one.hex() for one in hashes_of(KEYS)]


class Cluster:
    """Two masters with REST interfaces, a node, and objects that lie in shards of both."""

    def __init__(self, stack: ExitStack, folder: Path, *, dashboard: bool = False) -> None:
        etcd = stack.enter_context(EtcdServer(folder))
        certificates = Certificates(folder)
        self.trust = ssl.create_default_context(cafile=certificates.ca)
        guards = {**certificates.mutual, "tokens_file": str(write_tokens(folder / "tokens.json"))}
        self.pages = [f"https://127.0.0.1:{port}" for port in free_ports(2)]
        flags = [
            "--store",
            f"etcd://{etcd.endpoint}",
            "--shards",
            "4",
            "--lease-s",
            "30",
            f"--dashboard={dashboard}",
        ]
        flags += [f"--{name.replace('_', '-')}={value}" for name, value in guards.items()]
        self.masters = [
            stack.enter_context(MasterProcess([*flags, f"--http-port={page.rpartition(':')[2]}"]))
            for page in self.pages
        ]
        addresses = ",".join(master.address for master in self.masters)
        stack.enter_context(NodeProcess(addresses, name="n0", prefault=False, token=TOKENS["node"], **guards))
        self.client = stack.enter_context(
            StoreClient(
                ClientSettings(
                    master=addresses, timeout_s=20, tenant="red", token=TOKENS["red"], **certificates.mutual
                )
            )
        )
        wait_until(lambda: sorted(map(len, self.owned())) == [2, 2])
        wait_until(lambda: set(self.client.batch_put(KEYS, KEYS_AS_VALUES)) <= {Status.OK, Status.EXISTS})
        # A put is done once its node has it; a slow node's report to one of the masters may still be on its way.
        wait_until(lambda: bool(self.ask(0, "cluster")[1]["blocks"] == len(KEYS)))

    def owned(self) -> list[list[int]]:
        """Shards by master."""
        return [master["shards"] for master in self.ask(0, "masters")[1]["items"] if master["asked"]]

    def ask(
        self,
        master: int,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        method: str | None = None,
    ) -> tuple[int, Any]:
        """(status, document)."""
        said = {"content-type": "application/json", "authorization": f"Bearer {TOKENS['admin']}"}
        request = urllib.request.Request(
            f"{self.pages[master]}/api/v1/{path}",
            json.dumps(body).encode() if body is not None else None,
            said | (headers or {}),
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=120, context=self.trust) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ask_all(self, master: int, questions: Sequence[tuple[str, object]]) -> dict[str, tuple[int, Any]]:
        """The same by path, of some (path, body) at once."""
        with ThreadPoolExecutor(len(questions)) as threads:
            asked = {path: threads.submit(self.ask, master, path, body) for path, body in questions}
            return {path: answer.result() for path, answer in asked.items()}
