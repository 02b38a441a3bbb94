"""What a test of NodeCore expects of it: open puts and committed objects, as plain values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace

PAGE = 64 << 10
PAGES = 10
SPECS = [
    KeyspaceSpec(kind=Kind.CHAINED, name="model", shard_bytes=(4000, 12000)),
    KeyspaceSpec(kind=Kind.FLAT, name="state", shard_bytes=(30000,), hash_bytes=16),
    objects_keyspace(),
]
DIGESTS = [spec.digest() for spec in SPECS]
SESSIONS = [11, 12]


@dataclass
class Block:
    """What the model knows of one block of a put."""

    keyspace: bytes
    rank: int
    block_hash: bytes
    position: int
    parent: bytes
    length: int
    key: bytes
    status: int
    slot: int
    generation: int
    doomed: bool = False

    @property
    def payload(self) -> bytes:
        seed = hashlib.sha256(self.keyspace + self.block_hash + bytes([self.rank])).digest()
        return (seed * (self.length // 32 + 1))[: self.length]


@dataclass
class Model:
    """Open puts and committed objects. `ahead`: kind and length of what those puts are for
    whose slots have no names yet, and are doomed."""

    puts: dict[tuple[int, int], list[Block]] = field(default_factory=dict)
    ended: dict[tuple[int, int], bytes] = field(default_factory=dict)
    ahead: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    held: dict[int, Block] = field(default_factory=dict)
    generations: set[int] = field(default_factory=set)
    obeyed: list[tuple[int, int]] = field(default_factory=list)
