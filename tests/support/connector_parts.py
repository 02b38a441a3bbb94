"""The parts of the small engine in connector_engine.py: requests, the block pool, and threads that are told when to run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BLOCK_TOKENS = 4
BLOCK_BYTES = 64
NULL = 0


def content(group: int, rank: int, block: bytes) -> np.ndarray[Any, Any]:
    """What a block with this hash must hold."""
    seed = hashlib.sha256(block + bytes([group, rank])).digest()
    return np.frombuffer(seed * (BLOCK_BYTES // len(seed)), dtype=np.uint8)


class ManualRunner:
    """A JobRunner whose jobs run when a test says so."""

    def __init__(
        self,
        name: str,
        handle: Callable[[Any], None],
        *,
        threads: int,
        queue_max: int,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self.name, self.handle, self.queue_max = name, handle, queue_max
        self.jobs: list[Any] = []

    def submit(self, job: Any) -> bool:
        """Keeps it."""
        if len(self.jobs) >= self.queue_max:
            return False
        self.jobs.append(job)
        return True

    def run(self) -> None:
        """Handles the oldest one."""
        if self.jobs:
            self.handle(self.jobs.pop(0))

    def close(self) -> None:
        """Forgets all."""
        self.jobs.clear()


@dataclass(eq=False)
class Request:
    """A request, as vLLM keeps it."""

    request_id: str
    tokens: list[int]
    output_tokens: int
    num_computed_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)
    state: str = "waiting"  # waiting, loading, loaded, running, done
    from_pool: int = 0
    errors: int = 0

    def __post_init__(self) -> None:
        self.rehash()

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.tokens)

    def rehash(self) -> None:
        """Names the full blocks."""
        while (len(self.block_hashes) + 1) * BLOCK_TOKENS <= len(self.tokens):
            at = len(self.block_hashes) * BLOCK_TOKENS
            parent = self.block_hashes[-1] if self.block_hashes else b""
            own = repr(self.tokens[at : at + BLOCK_TOKENS]).encode()
            self.block_hashes.append(hashlib.sha256(parent + own).digest())


class Blocks:
    """The block pool: references, the free queue, and the local prefix cache. Satisfies BlockHolder."""

    null_block = NULL

    def __init__(self, capacity: int, scribble: Callable[[int], None]) -> None:
        self.capacity = capacity
        self.references = [0] * capacity
        self.references[NULL] = 1
        self.free = list(range(1, capacity))
        self.cached: dict[tuple[int, bytes], int] = {}
        self.scribble = scribble

    def holds_state(self, block_id: int, tokens: int) -> bool:
        """These engines have no states."""
        raise AssertionError(block_id, tokens)

    def hold(self, block_ids: Any) -> None:
        """One more reference each."""
        for block in block_ids:
            assert block != NULL
            if self.references[block] == 0:
                self.free.remove(block)
            self.references[block] += 1

    def release(self, block_ids: Any) -> None:
        """One less."""
        for block in block_ids:
            if block == NULL:
                continue
            self.references[block] -= 1
            assert self.references[block] >= 0
            if self.references[block] == 0:
                self.free.append(block)

    def take(self) -> int | None:
        """A block for somebody else: whatever was in it is gone."""
        if not self.free:
            return None
        block = self.free.pop(0)
        self.cached = {key: value for key, value in self.cached.items() if value != block}
        self.references[block] = 1
        self.scribble(block)
        return block
