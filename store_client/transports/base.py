"""The transport seam: payload bytes between a client's memory and the slots of one node.

shm.py     same host: the mapped segment, no call to the node for a read
tcp.py     other hosts: lanes straight from and into the client's memory
faulty.py  the fake: any of them, with loss, delay, truncation and late writes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import BeginItem, PutSmall
from moonpool.schemas.packed import U8, U32, U64
from moonpool.store_client.fragments import Fragments


class ReadBatch(msgspec.Struct, frozen=True, eq=False):
    """Objects of one keyspace and rank in the slots of one segment, and where they go.

    All columns have one entry an object. `hashes` is S32, or of fewer bytes; `lengths` are payload bytes, equal to the sum of the
    object's fragments. `verify`: compare checksums where the destination is host memory.
    """

    keyspace: bytes
    rank: int
    hashes: NDArray[np.bytes_]
    slots: U32
    generations: U64
    lengths: U64
    into: Fragments
    verify: bool = True

    def part(self, index: NDArray[np.intp], into: Fragments | None = None) -> ReadBatch:
        """Some of the objects, into the same places or others."""
        return ReadBatch(
            keyspace=self.keyspace,
            rank=self.rank,
            hashes=self.hashes[index],
            slots=self.slots[index],
            generations=self.generations[index],
            lengths=self.lengths[index],
            into=into or self.into.take(index),
            verify=self.verify,
        )


class FewObjects(NamedTuple):
    """Objects of one keyspace and rank in one segment, and where they go, as packed columns; see Fragments and ReadBatch."""

    keyspace: bytes
    rank: int
    hashes: bytes
    addresses: bytes
    sizes: bytes
    offsets: bytes
    lengths: bytes
    size_bytes: int
    verify: bool


@dataclass(frozen=True, slots=True, eq=False)
class WriteBatch:
    """Consecutive blocks to be put in one segment, and where their bytes are. `direct`: see PutStarted; not by transfer
    engines. Those that are BUSY then are to be asked for."""

    item: BeginItem
    lengths: U64
    source: Fragments
    visible: bool = False
    direct: bool = False


SpecOf = Callable[[bytes], KeyspaceSpec | None]
"""What the client knows of a keyspace: a node that was started anew is told it again."""


class Door(Protocol):
    """Where a node takes small objects in one message."""

    def put(self, message: PutSmall, deadline_s: float) -> bytes:
        """A Status byte an object. Raises MoonpoolError."""
        ...


class Transport(Protocol):
    """One node's slots. Thread-safe; every call has a deadline; a failure is a Status of one object, never an
    exception that loses the others. All copies and socket calls release the interpreter lock."""

    name: str
    lands_late: bool
    """Whether a read that failed or timed out may still write its destination afterwards."""

    @property
    def door(self) -> Door | None:
        """For what is in host memory; None: there is none, or only `write` may go through it."""
        ...

    def read(self, batch: ReadBatch, deadline_s: float) -> U8:
        """Fills `batch.into`, then validates (I3). `deadline_s` is time.monotonic(). Returns a Status an object:
        only where it is OK are the bytes the ones that were asked for."""
        ...

    def write(self, batches: Sequence[WriteBatch], deadline_s: float) -> list[U8]:
        """Begin, copy, commit, with as few calls as the batches need together. Returns a Status an object."""
        ...

    def prepare(self) -> None:
        """Does now what the first transfer would otherwise wait for. May take seconds; raises MoonpoolError."""
        ...

    def close(self) -> None:
        """Frees connections and mappings; a call under way fails soon."""
        ...
