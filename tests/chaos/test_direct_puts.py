"""Plain objects put and removed by writers on the node's own host, while master and node are frozen, killed and started
again: what was removed never comes back, and nobody is told that it is there."""

from __future__ import annotations

import random
import secrets
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.processes import MasterProcess, NodeProcess, ServerProcess
from support.soak import SOAK
from support.waiting import wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.messages import Status
from moonpool.store_client import StoreClient

WRITERS = 2
KEYS = 8
"""Of each writer, which alone changes them."""

SECONDS = 5.0 * SOAK
SIZES = (20, 3000, 100_000)
UNKNOWN = b""
"""What a key holds after an operation that may or may not have been done. No value is empty."""


class Writer(threading.Thread):
    """Does one thing after the other, and knows what must be there: a value, None, or UNKNOWN."""

    def __init__(self, client: StoreClient, seed: int, stop: threading.Event) -> None:
        super().__init__()
        self._client = client
        self._random = random.Random(seed)
        self._stop_event = stop
        self._keys = [f"{seed}-{number}" for number in range(KEYS)]
        self.state: dict[str, bytes | None] = dict.fromkeys(self._keys, UNKNOWN)
        self.wrong: list[str] = []
        self.stored = 0

    def run(self) -> None:
        while not self._stop_event.is_set():
            key = self._random.choice(self._keys)
            known = self.state[key]
            do = self._random.choices((self.put, self.remove, self.look), (1, 7, 2) if known else (8, 1, 1))[
                0
            ]
            try:
                do(key, known)
            except MoonpoolError:
                if do != self.look:
                    self.state[key] = UNKNOWN

    def put(self, key: str, known: bytes | None) -> None:
        value = secrets.token_bytes(self._random.choice(SIZES))
        status = self._client.put(key, value)
        if status == Status.OK:
            # Where something was there already a master had lost its index: either may stay.
            self.state[key] = value if known is None else UNKNOWN
            self.stored += 1
        elif known is None and status == Status.EXISTS:
            # By a first try of this very put, whose node was killed before it had answered: no other value may be there.
            self.state[key] = value
        elif known is None:
            self.state[key] = UNKNOWN

    def remove(self, key: str, known: bytes | None) -> None:
        self.state[key] = UNKNOWN if self._client.batch_remove([key], force=True).pending else None

    def look(self, key: str, known: bytes | None) -> None:
        self.see(key, known, self._client.get(key))

    def see(self, key: str, known: bytes | None, found: bytes | None) -> None:
        if known is None and found is not None:
            self.wrong.append(f"{key} was removed, and is there")
        elif known and found not in (known, None):
            self.wrong.append(f"{key} has another value")


def disturb(server: ServerProcess, dice: random.Random) -> None:
    if dice.random() < 0.5:
        server.freeze()
        time.sleep(dice.choice((0.05, 0.3, 1.2)))
        server.thaw()
    else:
        server.kill()
        server.start()


def test_what_was_removed_stays_away(tmp_path: Path) -> None:
    dice, stop = random.Random(7), threading.Event()
    settings: dict[str, Any] = {"size": 64 << 20, "prefault": False, "segment_dir": "/dev/shm"}
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess(["--store", f"file:{tmp_path}/store"]))
        node = NodeProcess(master, name=f"direct-{secrets.token_hex(4)}", **settings)
        stack.enter_context(node)
        stack.callback(Path(node.info.segment_path).unlink)
        writers = []
        for seed in range(WRITERS):
            given = ClientSettings(
                master=master.address, run_dir=node.run_dir, timeout_s=4.0, breaker_retry_s=0.05
            )
            writers.append(Writer(stack.enter_context(StoreClient(given)), seed, stop))
        auditor = writers[0]._client
        wait_until(lambda: any(entry.state == 1 for entry in auditor.cluster_map().nodes))
        for writer in writers:
            writer.start()
        try:
            end_s = time.monotonic() + SECONDS
            while time.monotonic() < end_s:
                time.sleep(dice.uniform(0.2, 0.8))
                disturb(dice.choice((master, node)), dice)
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        before = sum(writer.stored for writer in writers)
        wait_until(lambda: auditor.put(secrets.token_hex(8), b"value") == Status.OK)
        for writer in writers:
            for key, known in writer.state.items():
                writer.see(key, known, auditor.get(key))
        assert not any(writer.wrong for writer in writers), [writer.wrong for writer in writers]
        assert before, "nothing was ever stored"
