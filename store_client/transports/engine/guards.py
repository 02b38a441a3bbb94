"""Words in registered memory that say that a put is still wanted: its node reads one after the payload (see PullWrite)."""

from __future__ import annotations

import mmap
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from moonpool.schemas.errors import Overloaded
from moonpool.store_client.node.headers import fence
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.transports.engine.engine import Engine

GUARDS = 512
_GUARDS_BYTES = 8 * GUARDS


class Guards:
    """Aligned 8-byte words: stored and read whole. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._memory = mmap.mmap(-1, _GUARDS_BYTES)
        self._words = np.frombuffer(self._memory, dtype=np.uint64)
        self._address = address_of(self._words)
        self._lock = threading.Lock()
        self._free = list(range(GUARDS))
        engine.register(self._address, _GUARDS_BYTES)

    @contextmanager
    def guard(self) -> Iterator[tuple[int, int]]:
        """(address, token) of a put that is wanted until the `with` ends. Raises Overloaded."""
        with self._lock:
            if not self._free:
                raise Overloaded(what="the transport mooncake", limit=f"{GUARDS} puts at once")
            word = self._free.pop()
        token = secrets.randbits(63) + 1
        self._words[word] = token
        fence()
        try:
            yield self._address + 8 * word, token
        finally:
            self._words[word] = 0
            fence()  # before the caller changes a byte of what it offered
            with self._lock:
                self._free.append(word)

    def close(self) -> None:
        """Frees the memory."""
        self._engine.unregister(self._address)
        del self._words
        self._memory.close()
