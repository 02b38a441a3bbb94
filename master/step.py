"""What one call of a shard is given, and what it leaves for the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from moonpool.master.drops import DropBatch
from moonpool.master.table import Usable
from moonpool.schemas.errors import InvalidParams

BLOCKS_MAX = 65536
"""Blocks named by one request: a million tokens of 16 a block. Holds the loop for some tens of ms at worst."""

LEASE_MS_MAX = 600_000


class CheckOrder(NamedTuple):
    """A slot that its node must check."""

    segment: int
    keyspace: bytes
    rank: int
    block_hash: bytes
    slot: int
    generation: int


class Predicate(NamedTuple):
    """Rows that every node must drop, whatever it thinks of them: slots under way too."""

    keyspace: bytes
    hashes: bytes
    whole_keyspace: bool


PlacePut = Callable[[int, Mapping[int, int]], int | None]
"""(bytes of one block, promised bytes by segment) -> index of the segment to write to; None: there is none."""


@dataclass(slots=True)
class Step:
    """`usable` by segment index; `impaired`: some segment that holds rows isn't. `names`: segment ids by index.
    `postponed`: segments that may hold what is removed later."""

    now_s: float
    usable: Usable
    impaired: bool
    names: Sequence[bytes]
    place_put: PlacePut
    drops: DropBatch = field(default_factory=DropBatch)
    checks: list[CheckOrder] = field(default_factory=list)
    predicate: Predicate | None = None
    postponed: set[int] = field(default_factory=set)

    def until_s(self, lease_ms: int) -> float:
        """End of a lease of so many ms. Raises InvalidParams."""
        if not 0 <= lease_ms <= LEASE_MS_MAX:
            raise InvalidParams(field="lease_ms", value=lease_ms, allowed=f"0 to {LEASE_MS_MAX}")
        return self.now_s + lease_ms / 1000


def check_count(count: int, what: str) -> None:
    """Raises InvalidParams where one request names too many blocks."""
    if count > BLOCKS_MAX:
        raise InvalidParams(field=what, value=f"{count} blocks", allowed=f"{BLOCKS_MAX} a request")
