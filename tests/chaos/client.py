"""A client process of the chaos test: writes, reads and pins until it is told to stop, and times every call.

Contents follow from keys, so that it can tell right bytes from wrong ones. What it sees it prints as JSON lines, what is
acknowledged at once: whoever kills it keeps what it knew. Arguments: masters, transport, name, seed.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from support.payloads import chain_hashes, payload
from support.workload import BLOCK_BYTES, CHAINS, SPEC, chain_length

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import Status
from moonpool.store_client import BlockGet, BlockPut, StoreClient
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.objects import hashes_of

Result = TypeVar("Result")

OBJECTS = objects_keyspace().digest()
TIMEOUT_S = 1.5
SLACK_S = 0.75
"""Beyond the deadline, and beyond what this process was kept from running meanwhile."""

PINS_MAX = 12
"""Of one process; then the oldest is unpinned."""

REMOVED_MAX = 64
"""Of one process, that are asked for again and again."""

TELL_EVERY_S = 0.5


def value_of(key: str) -> bytes:
    """The only right content of an object."""
    return key.encode() * (3000 // len(key))


def say(**facts: object) -> None:
    """For whoever reads the output."""
    print(json.dumps(facts), flush=True)


class StallMeter:
    """How long this process was kept from running, by SIGSTOP or by others on the machine."""

    TICK_S = 0.05

    def __init__(self) -> None:
        self.stalled_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before_s = time.monotonic()
        while True:
            time.sleep(self.TICK_S)
            now_s = time.monotonic()
            self.stalled_s += now_s - before_s - self.TICK_S
            before_s = now_s


class ChaosClient:
    """One StoreClient, and what was seen through it."""

    def __init__(self, client: StoreClient, name: str, dice: random.Random) -> None:
        self._client, self._name, self._dice = client, name, dice
        self._meter = StallMeter()
        self._seen: Counter[str] = Counter()
        self._slowest_s = 0.0
        self._pins: deque[str] = deque()
        self._removed: deque[str] = deque(maxlen=REMOVED_MAX)
        self._numbers = iter(range(1 << 30))

    def run(self, stopped: Callable[[], bool]) -> None:
        """One thing after another."""
        told_s = 0.0
        while not stopped():
            self._dice.choice(
                [self.write, self.read, self.read, self.store, self.pin, self.fetch, self.remove, self.ask]
            )()
            if time.monotonic() > told_s + TELL_EVERY_S:
                told_s = time.monotonic()
                self.tell()
        self.tell()

    def tell(self) -> None:
        """Counts since it was last told."""
        say(counts=self._seen, slowest_s=self._slowest_s)
        self._seen.clear()

    def timed(self, what: str, call: Callable[[], Result]) -> Result | None:
        """None where it raises what a client must bear."""
        start_s, stalled_s = time.monotonic(), self._meter.stalled_s
        self._seen["calls"] += 1
        try:
            return call()
        except MoonpoolError:
            self._seen["failed"] += 1
            return None
        finally:
            time.sleep(0)  # lets the meter see a stop that has just ended
            took_s = time.monotonic() - start_s
            if took_s > TIMEOUT_S + SLACK_S:
                time.sleep(2 * StallMeter.TICK_S)
                took_s -= self._meter.stalled_s - stalled_s
            self._slowest_s = max(self._slowest_s, took_s)
            if took_s > TIMEOUT_S + SLACK_S:
                say(late=f"{what} took {took_s:.2f} s")

    # ------------------------------------------------------------ blocks

    def write(self) -> None:
        """What the pool lacks of a chain."""
        chain = self._dice.randrange(CHAINS)
        hashes = chain_hashes(f"chain-{chain}", chain_length(chain))
        keyspace = self.timed("register_keyspace", lambda: self._client.register_keyspace(SPEC))
        if keyspace is None:
            return
        buffer = np.concatenate([payload(one, 0, BLOCK_BYTES) for one in hashes])
        put = BlockPut(keyspace, 0, hashes, 0, blocks_in(buffer))
        statuses = self.timed("put_blocks", lambda: self._client.put_blocks([put]))
        assert statuses is not None, "put_blocks raises nothing"
        self._seen["blocks written"] += int((statuses[0] == Status.OK).sum())

    def read(self) -> None:
        """A chain, as far as the pool says that it has it. Every byte is looked at."""
        chain = self._dice.randrange(CHAINS)
        hashes = chain_hashes(f"chain-{chain}", chain_length(chain))
        keyspace = SPEC.digest()
        ready = self.timed("match", lambda: self._client.match(keyspace, hashes))
        if not ready:
            return
        first = self._dice.randrange(ready)
        buffer = np.zeros((ready - first) * BLOCK_BYTES, dtype=np.uint8)
        get = BlockGet(keyspace, 0, hashes[:ready], first, blocks_in(buffer))
        statuses = self.timed("get_blocks", lambda: self._client.get_blocks(get))
        assert statuses is not None, "get_blocks raises nothing"
        for index in np.flatnonzero(statuses == Status.OK).tolist():
            got = buffer[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
            self._seen["verified"] += 1
            if not np.array_equal(got, payload(hashes[first + index], 0, BLOCK_BYTES)):
                say(wrong=f"chain {chain} block {first + index}")
        self._seen["missed"] += int((statuses != Status.OK).sum())

    # ------------------------------------------------------------ objects and pins

    def store(self) -> None:
        """An object of a few that all clients share."""
        key = f"shared object {self._dice.randrange(200)}"
        self.timed("put", lambda: self._client.put(key, value_of(key)))

    def fetch(self) -> None:
        """One of those."""
        self.look(f"shared object {self._dice.randrange(200)}")

    def look(self, key: str) -> None:
        """Its value, if any, is its own."""
        got = self.timed("get", lambda: self._client.get(key))
        if got is None:
            return
        self._seen["verified"] += 1
        if got != value_of(key):
            say(wrong=key)

    def pin(self) -> None:
        """An object of this process's own. Nobody else pins or removes it."""
        key = f"object {next(self._numbers)} of {self._name}"
        if self.timed("put", lambda: self._client.put(key, value_of(key))) is not Status.OK:
            return
        if self.timed("pin", lambda: self._client.pin(OBJECTS, hashes_of([key]))) == 1:
            say(pinned=key)
            self._pins.append(key)
            self.look(self._dice.choice(self._pins))
        if len(self._pins) > PINS_MAX:
            oldest = self._pins.popleft()
            say(unpinning=oldest)
            if self.timed("unpin", lambda: self._client.unpin(OBJECTS, hashes_of([oldest]))) == 1:
                say(unpinned=oldest)

    def remove(self) -> None:
        """An object of this process's own, which nobody puts again."""
        key = f"object {next(self._numbers)} of {self._name}, for a moment"
        if self.timed("put", lambda: self._client.put(key, value_of(key))) is not Status.OK:
            return
        removed = self.timed("remove", lambda: self._client.batch_remove([key], force=True))
        if removed is not None and not removed.pending:
            say(removed=key)
            self._removed.append(key)

    def ask(self) -> None:
        """None of those is ever there again, whoever takes over."""
        keys = list(self._removed)
        there = self.timed("is_exist", lambda: self._client.batch_is_exist(keys)) if keys else None
        self._seen["absent"] += len(keys) if there else 0
        for key, back in zip(keys, there or (), strict=False):
            if back:
                say(wrong=f"{key} is back")


def blocks_in(buffer: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Fragments:
    """One contiguous block after another."""
    starts = np.arange(buffer.size // BLOCK_BYTES, dtype=np.uint64) * np.uint64(BLOCK_BYTES)
    starts += np.uint64(buffer.ctypes.data)
    return Fragments.grid(starts.reshape(-1, 1), np.array([BLOCK_BYTES], dtype=np.uint64))


def main() -> None:
    """Until SIGTERM."""
    masters, transport, name, seed = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = {"master": masters, "transport": transport, "timeout_s": TIMEOUT_S, "breaker_retry_s": 0.2}
    with StoreClient(ClientSettings.model_validate(settings)) as client:
        say(ready=name)
        ChaosClient(client, name, random.Random(f"{seed} {name}")).run(stop.is_set)


if __name__ == "__main__":
    main()
