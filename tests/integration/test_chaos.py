"""A pool a tenth of the working set, evicting all the time, while everything around it is stopped and killed.

Contents follow from keys, so a reader can tell. What must hold: not one wrong byte, and at the end not one
slot lost. MOONPOOL_SOAK=1 makes it ten times as long.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from support.chaos_writer import write_chain
from support.payloads import chain_hashes, payload
from support.processes import MasterProcess, NodeProcess, ServerProcess
from support.workload import BLOCK_BYTES, CHAINS, POOL_BYTES, SPEC, chain_length

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import MoonpoolError
from moonpool.store_client import BlockGet, StoreClient
from moonpool.store_client.fragments import Fragments

SEED = 20
SOAK = 10 if os.environ.get("MOONPOOL_SOAK") else 1
VERIFIED_READS = 10_000 * SOAK
FAULTS = 8 * SOAK
TIME_LIMIT_S = 600.0 * SOAK
READERS, WRITERS, WRITER_PROCESSES = 3, 1, 2


@dataclass
class Tally:
    """What the threads saw."""

    verified: int = 0
    wrong: list[str] = field(default_factory=list)
    missed: int = 0
    written: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def read_chain(client: StoreClient, rng: random.Random, tally: Tally) -> None:
    """Matches a chain, sometimes dawdles longer than its lease, reads it and checks every byte."""
    chain = rng.randrange(CHAINS)
    hashes = chain_hashes(f"chain-{chain}", chain_length(chain))
    try:
        keyspace = client.register_keyspace(SPEC)
        ready = client.match(keyspace, hashes)
        if rng.random() < 0.02:
            time.sleep(3.5)  # the lease of a match is 3 s
        if not ready:
            return
        first = rng.randrange(ready)
        buffer = np.zeros((ready - first) * BLOCK_BYTES, dtype=np.uint8)
        starts = np.uint64(buffer.ctypes.data) + np.arange(ready - first, dtype=np.uint64) * np.uint64(
            BLOCK_BYTES
        )
        into = Fragments.grid(starts.reshape(-1, 1), np.array([BLOCK_BYTES], dtype=np.uint64))
        statuses = client.get_blocks(BlockGet(keyspace, 0, hashes[:ready], first, into))
    except MoonpoolError:
        with tally.lock:
            tally.missed += 1
        return
    for index, status in enumerate(statuses):
        got = buffer[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
        right = status != 0 or bool((got == payload(hashes[first + index], 0, BLOCK_BYTES)).all())
        with tally.lock:
            tally.verified += int(status == 0)
            tally.missed += int(status != 0)
            if not right:
                tally.wrong.append(f"chain {chain} block {first + index}")


def in_thread(work: Callable[[random.Random], None], seed: int, stop: threading.Event) -> threading.Thread:
    """Repeats `work` until told to stop."""
    rng = random.Random(seed)

    def loop() -> None:
        while not stop.is_set():
            work(rng)

    thread = threading.Thread(target=loop, name=f"chaos-{seed}")
    thread.start()
    return thread


def start_writer(port: str, seed: int) -> subprocess.Popen[bytes]:
    """A writer process, up and writing."""
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "support.chaos_writer", port, str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def end_writer(process: subprocess.Popen[bytes]) -> None:
    """Kill -9, stopped or not."""
    process.kill()
    process.wait(60)
    assert process.stdout is not None
    process.stdout.close()


class Faults:
    """One fault after another, chosen by a seeded die."""

    def __init__(self, master: ServerProcess, node: ServerProcess, tally: Tally) -> None:
        self._master, self._node, self._tally = master, node, tally
        self._port = master.address.rpartition(":")[2]
        self._seed = 1000
        self.writers = [self._new_writer() for _ in range(WRITER_PROCESSES)]

    def _new_writer(self) -> subprocess.Popen[bytes]:
        self._seed += 1
        return start_writer(self._port, self._seed)

    def kill_master(self) -> None:
        self._master.kill()
        self._master.start()

    def freeze_master(self) -> None:
        self._master.freeze()
        time.sleep(2.5)
        self._master.thaw()

    def kill_node(self) -> None:
        self._node.kill()
        self._node.start()

    def freeze_node(self) -> None:
        self._node.freeze()
        time.sleep(4.0)  # suspect after 3 s
        self._node.thaw()

    def kill_writer(self) -> None:
        end_writer(self.writers.pop(0))
        self.writers.append(self._new_writer())

    def stop_writer_long(self) -> None:
        """Stopped in mid copy until its session's heartbeats and connections are long gone, then woken."""
        writer = self.writers[0]
        writer.send_signal(19)
        time.sleep(5.0)
        writer.send_signal(18)

    def strike(self, rng: random.Random, turn: int) -> None:
        """Each kind at least once, then at random."""
        kinds = [
            self.kill_writer,
            self.stop_writer_long,
            self.kill_node,
            self.kill_master,
            self.freeze_master,
            self.freeze_node,
        ]
        kind = kinds[turn] if turn < len(kinds) else rng.choice(kinds)
        name = kind.__name__
        self._tally.faults[name] = self._tally.faults.get(name, 0) + 1
        kind()


@pytest.mark.timeout(TIME_LIMIT_S + 120)
def test_no_wrong_byte_and_no_slot_lost() -> None:
    tally = Tally()
    rng = random.Random(SEED)
    with (
        MasterProcess() as master,
        NodeProcess(master, size=POOL_BYTES) as node,
        StoreClient(ClientSettings(master=master.address, timeout_s=1.0, breaker_retry_s=0.2)) as client,
    ):
        stop = threading.Event()
        threads = [
            in_thread(lambda dice: read_chain(client, dice, tally), index, stop) for index in range(READERS)
        ]

        def write(dice: random.Random) -> None:
            tally.written += write_chain(client, dice.randrange(CHAINS))

        threads += [in_thread(write, 100 + index, stop) for index in range(WRITERS)]
        faults = Faults(master, node, tally)
        start = time.monotonic()
        turn = 0
        try:
            while time.monotonic() - start < TIME_LIMIT_S and not tally.wrong:
                if turn < FAULTS:
                    faults.strike(rng, turn)
                    turn += 1
                elif tally.verified >= VERIFIED_READS:
                    break
                time.sleep(1.0)
        finally:
            stop.set()
            for thread in threads:
                thread.join(120)
            for writer in faults.writers:
                end_writer(writer)
        print(f"{tally.verified} verified, {tally.missed} missed, {tally.written} written, {tally.faults}")
        assert not tally.wrong
        assert tally.verified >= VERIFIED_READS
        assert turn == FAULTS
        assert_all_space_comes_back(client, node)


def assert_all_space_comes_back(client: StoreClient, node: NodeProcess) -> None:
    """With every row removed and every writer gone, the node has all its slots again."""
    keyspace = client.register_keyspace(SPEC)
    deadline = time.monotonic() + 60
    used = -1
    while time.monotonic() < deadline:
        client.clear(keyspace)
        used = int(node.status()["used_bytes"])
        if used == 0:
            return
        time.sleep(0.3)
    raise AssertionError(f"{used} bytes of slots are lost")
