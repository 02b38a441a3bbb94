"""The question of the scheduler, asked of both stores: how much of this prompt is there?"""

from __future__ import annotations

import ctypes
from typing import Any

from moonpool.benchmarks.prompts import chain, lookup_spec, text_keys
from moonpool.benchmarks.subjects.mooncake import MooncakeSubject
from moonpool.schemas.config import ClientSettings
from moonpool.store_client import StoreClient

FILL_KEYS = 5000
VALUE_BYTES = 16


class MoonpoolLookup:
    """One client; the master was filled by a node on paper."""

    def __init__(self, *, master: str, world: int) -> None:
        self._client = StoreClient(ClientSettings(master=master, timeout_s=30.0))
        self._keyspace = self._client.register_keyspace(lookup_spec(world))

    def prepare(self, hashes: list[bytes]) -> Any:
        """What `ask` wants; not counted."""
        return hashes

    def ask(self, prompt: Any) -> int:
        """Blocks of the prompt that are there, from its first one on."""
        return self._client.match(self._keyspace, prompt)

    def fill(self, first: int, chains: int, blocks: int) -> None:
        """Nothing: see the class."""

    def close(self) -> None:
        """Leaves."""
        self._client.close()


class MooncakeLookup:
    """One client. A block counts where all its ranks' keys are there."""

    def __init__(self, *, master: str, world: int, segment_bytes: int = 0) -> None:
        self._world = world
        self._subject = MooncakeSubject(master=master, segment_bytes=segment_bytes)
        self._value = ctypes.create_string_buffer(VALUE_BYTES)
        self._subject.register(ctypes.addressof(self._value), VALUE_BYTES)

    def prepare(self, hashes: list[bytes]) -> Any:
        """The strings."""
        return text_keys(hashes, self._world)

    def ask(self, prompt: Any) -> int:
        """Blocks of the prompt that are there."""
        return self._subject.exist(prompt) // self._world

    def fill(self, first: int, chains: int, blocks: int) -> None:
        """Stores chains first to first + chains."""
        address = ctypes.addressof(self._value)
        for index in range(first, first + chains):
            keys = text_keys(chain(f"chain-{index}", blocks), self._world)
            for at in range(0, len(keys), FILL_KEYS):
                part = keys[at : at + FILL_KEYS]
                pieces = [[address]] * len(part), [[VALUE_BYTES]] * len(part)
                if self._subject.put(part, pieces) != len(part):
                    raise RuntimeError("Mooncake did not take the chains")

    def close(self) -> None:
        """Leaves."""
        self._subject.close()
