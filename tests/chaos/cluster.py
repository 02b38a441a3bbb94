"""The parts of the chaos test, each on a host of its own: three etcds, three masters, four nodes, three clients.

Masters and etcds are spoken to through bad wires (wire.py), where there are hosts apart.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chaos.faults import WIRES, Fault, Kind
from chaos.wire import write_trouble
from support.etcd_members import start_together
from support.etcd_server import EtcdServer
from support.network import Network, possible
from support.processes import MasterProcess, NodeProcess, ServerProcess

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import MoonpoolError
from moonpool.store_client import StoreClient

MASTERS, NODES, CLIENTS = ("m0", "m1", "m2"), ("n0", "n1", "n2", "n3"), ("c0", "c1", "c2")
ETCDS = ("e0", "e1", "e2")
PARTS = (*ETCDS, *MASTERS, *NODES, *CLIENTS)
MASTER_PORT, WIRE_PORT, ETCD_PORT = 7000, 7001, 2379
TRANSPORTS = {"c0": "shm", "c1": "tcp", "c2": "tcp"}
SHARDS = 6
LEASE_S = 3.0
NODE_BYTES = 8 << 20
RELAUNCH_PAUSE_S = 1.0
TESTS = str(Path(__file__).parents[1])
UP_TIMEOUT_S = 180.0
COPIES_PAUSE_S = 2.0

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


class ClientProcess(ServerProcess):
    """`python -m chaos.client`, another name and seed at each start."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__()
        self._name, self._seed, self._starts = name, seed, itertools.count()
        self.masters = ""
        self.environment = {"PYTHONPATH": TESTS}

    def arguments(self) -> list[str]:
        name = f"{self._name}.{next(self._starts)}"
        return ["-m", "chaos.client", self.masters, TRANSPORTS[self._name], name, str(self._seed)]

    def is_up(self) -> bool:
        return '"ready"' in self.output()[self._seen :]

    def said(self) -> Iterator[dict[str, Any]]:
        """Its lines so far, of all starts."""
        for line in self.output().splitlines():
            if line.startswith("{"):
                yield json.loads(line)


class Cluster:
    """Starts everything. Without root there are no hosts apart, and links can't be cut."""

    def __init__(self, stack: ExitStack, folder: Path, seed: int) -> None:
        self._folder = folder
        self.network = stack.enter_context(Network(PARTS)) if possible() else None
        self.kinds = [kind for kind in Kind if self._can(kind)]
        self.etcds = {name: self._etcd(name) for name in ETCDS}
        start_together(stack, list(self.etcds.values()))
        self.wires = self._wires() if self.network is not None else {}
        for wire in self.wires.values():
            stack.enter_context(wire)
        self.masters = {name: self._master(name) for name in MASTERS}
        for master in self.masters.values():
            stack.enter_context(master)
        self.names = ",".join(self._spoken_to(name, master.address) for name, master in self.masters.items())
        self.nodes = {name: self._node(name) for name in NODES}
        self.clients = {name: ClientProcess(name, seed) for name in CLIENTS}
        for node in self.nodes.values():
            stack.enter_context(node)
        for name, client in self.clients.items():
            client.masters, client.prefix = self.names, self._command(name)
            stack.enter_context(client)
        self.parts = {**self.etcds, **self.masters, **self.nodes, **self.clients}
        self.auditor = stack.enter_context(StoreClient(ClientSettings(master=self.names, timeout_s=20.0)))
        stack.callback(self._clean_up)
        self._down: set[str] = set()
        self._launched_s = dict.fromkeys(PARTS, 0.0)
        self.relaunches: Counter[str] = Counter()
        """Parts that had ended by themselves."""

    def _can(self, kind: Kind) -> bool:
        if kind is Kind.STEP_CLOCK:
            return FAKETIME is not None
        return self.network is not None or kind in (Kind.KILL, Kind.FREEZE)

    def address(self, host: str) -> str:
        """Its IPv4 address."""
        return self.network.address(host) if self.network is not None else "127.0.0.1"

    def _command(self, host: str) -> list[str]:
        return self.network.command(host) if self.network is not None else []

    def _etcd(self, name: str) -> EtcdServer:
        return EtcdServer(self._folder / name, host=self.address(name), prefix=self._command(name), name=name)

    def _wires(self) -> dict[str, ServerProcess]:
        wires = {}
        for name in (*ETCDS, *MASTERS):
            port, kind = (ETCD_PORT, "bytes") if name in ETCDS else (MASTER_PORT, "frames")
            listen, upstream = (f"{self.address(name)}:{one}" for one in (WIRE_PORT, port))
            write_trouble(self._trouble(name))
            wires[name] = ServerProcess(
                ["-m", "chaos.wire", listen, upstream, str(self._trouble(name)), kind]
            )
            wires[name].prefix = self._command(name)
            wires[name].environment = {"PYTHONPATH": TESTS}
        return wires

    def _spoken_to(self, name: str, address: str) -> str:
        """Where others reach a master or an etcd."""
        return self.wires[name].address if self.wires else address

    def _trouble(self, name: str) -> Path:
        return self._folder / f"wire-{name}"

    def _master(self, name: str) -> MasterProcess:
        etcds = ";".join(self._spoken_to(one, etcd.endpoint) for one, etcd in self.etcds.items())
        flags = ["--host", self.address(name), "--insecure", "true", "--shards", str(SHARDS)]
        flags += ["--store", f"etcd://{etcds}", "--lease-s", str(LEASE_S), "--log-every-s", "1"]
        if self.wires:
            flags += ["--port", str(MASTER_PORT), "--advertise", self.wires[name].address]
        master = MasterProcess(flags)
        master.prefix = self._command(name)
        if FAKETIME is not None:
            self.step_clock(name, 0.0)
            master.environment = {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self._clock(name)),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return master

    def _node(self, name: str) -> NodeProcess:
        settings = {"host": self.address(name), "insecure": True, "prefault": False}
        node = NodeProcess(self.names, size=NODE_BYTES, name=name, **settings)
        node.prefix = self._command(name)
        return node

    def _clock(self, name: str) -> Path:
        return self._folder / f"clock-{name}"

    def step_clock(self, name: str, step_s: float) -> None:
        """A master's wall clock is so far from this machine's; its monotonic clock is right."""
        new = self._folder / f"clock-{name}.new"
        new.write_text(f"{step_s:+.1f}\n")
        os.replace(new, self._clock(name))

    # ------------------------------------------------------------ faults

    def strike(self, fault: Fault) -> None:
        """Begins."""
        part = self.parts[fault.part]
        if fault.kind is Kind.KILL:
            self._down.add(fault.part)
            part.kill()
        elif fault.kind is Kind.FREEZE and part.alive:
            part.freeze()
        elif fault.kind is Kind.STEP_CLOCK:
            self.step_clock(fault.part, fault.step_s)
        elif fault.kind in WIRES:
            write_trouble(self._trouble(fault.part), **WIRES[fault.kind])
        elif self.network is not None and fault.kind is Kind.ISOLATE:
            self.network.isolate(fault.part)
        elif self.network is not None:
            self.network.cut(fault.part, fault.other)
            if fault.kind is Kind.CUT:
                self.network.cut(fault.other, fault.part)

    def heal(self, fault: Fault) -> None:
        """Ends. A clock stays as it is."""
        part = self.parts[fault.part]
        if fault.kind is Kind.KILL:
            self._down.discard(fault.part)
            self._launch(fault.part)
        elif fault.kind is Kind.FREEZE and part.alive:
            part.thaw()
        elif fault.kind in WIRES:
            write_trouble(self._trouble(fault.part))
        elif self.network is not None and fault.kind is Kind.ISOLATE:
            self.network.mend_host(fault.part)
        elif self.network is not None and fault.other:
            self.network.mend_cut(fault.part, fault.other)
            self.network.mend_cut(fault.other, fault.part)

    def _launch(self, name: str) -> None:
        self._launched_s[name] = time.monotonic()
        self.parts[name].launch()

    def supervise(self) -> None:
        """What has ended by itself is started again, as a machine's supervisor does: a master that finds no etcd."""
        for name, part in self.parts.items():
            paused = time.monotonic() > self._launched_s[name] + RELAUNCH_PAUSE_S
            if name not in self._down and paused and not part.alive:
                self.relaunches[name] += 1
                self._launch(name)

    # ------------------------------------------------------------ peace

    def settled(self) -> None:
        """Waits until all parts are up, every shard has its owner and every node is live."""
        self._until(lambda: all(part.is_up() for part in self.parts.values()), "a part is not up")
        self._until(self._shared, "shards are not shared by all masters")

    def want_copies(self, keyspaces: Iterable[bytes], copies: int) -> None:
        """Of each block."""

        def asked() -> bool:
            for keyspace in keyspaces:
                self.auditor.admin.set_replicas(keyspace, copies)
            return True

        self._until(asked, "the number of copies can't be set")

    def copies_settled(self) -> None:
        """Waits until nobody copies any more."""
        before = -1
        while before != (before := self.copied()):
            time.sleep(COPIES_PAUSE_S)

    def copied(self) -> int:
        """Blocks that nodes have copied from each other since they were started last."""
        return sum(int(node.status()["copies_done"]) for node in self.nodes.values())

    def _shared(self) -> bool:
        there = self.auditor.cluster_map()
        shared = len(there.masters) == len(MASTERS) == len(set(there.owners)) and -1 not in there.owners
        return shared and sum(entry.state == 1 for entry in there.nodes) == len(NODES)

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        end_s = time.monotonic() + UP_TIMEOUT_S
        while True:
            self.supervise()
            if quietly(holds):
                return
            assert time.monotonic() < end_s, f"{otherwise}; see {self._folder}"
            time.sleep(0.2)

    def stop_clients(self) -> None:
        """Each ends the call that it is in."""
        codes = {name: client.stop() for name, client in self.clients.items()}
        assert not any(codes.values()), f"{codes}; see {self._folder}"

    def _clean_up(self) -> None:
        """Keeps the outputs, for whoever looks at a failure: pytest keeps the folders of the last runs."""
        for name, part in {**self.masters, **self.nodes, **self.clients}.items():
            (self._folder / f"{name}.log").write_text(part.output())
        for master in self.masters.values():
            for pid in master.pids:
                Path(f"/dev/shm/faketime_shm_{pid}").unlink(missing_ok=True)
                Path(f"/dev/shm/sem.faketime_sem_{pid}").unlink(missing_ok=True)


def quietly(holds: Callable[[], bool]) -> bool:
    """False where it can't be asked yet."""
    try:
        return bool(holds())
    except MoonpoolError:
        return False
