"""What one call of a shard is given, and what it leaves for the nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from moonpool.master.columns import NO_SEGMENT
from moonpool.master.drops import DropBatch
from moonpool.master.quotas import Spend
from moonpool.master.table import Usable
from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.messages import PutAnswer

BLOCKS_MAX = 65536
"""Blocks named by one request: a million tokens of 16 a block. Holds the loop for some tens of ms at worst."""

LEASE_MS_MAX = 600_000

NOWHERE: Usable = np.zeros(NO_SEGMENT + 1, dtype=np.bool_)
"""No segment at all."""


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


PlacePut = Callable[[int], int | None]
"""Bytes of one block -> index of the segment to write to; None: there is none."""


@dataclass(slots=True)
class Step:
    """One shard's. `usable` by segment index; `impaired`: some segment that holds rows isn't. `names`: segment ids by
    index. `near`: segments on the asker's host. `staying`: usable ones that are not to be emptied. `naming`: whether an
    inventory is under way. `postponed`: segments that may hold what is removed later. `share`: of the time that all shards have. `spend`: asked for each new block where tenants have quotas.
    `refused`: generations of reported slots that the index has no use for. `failed`: segments whose puts were given up."""

    now_s: float
    usable: Usable
    impaired: bool
    names: Sequence[bytes]
    place_put: PlacePut
    shard: int = 0
    share: float = 1.0
    spend: Spend | None = None
    near: Callable[[], Collection[int]] = tuple
    staying: Usable = field(default_factory=lambda: NOWHERE)
    naming: bool = False
    drops: DropBatch = field(init=False)
    refused: dict[int, PutAnswer] = field(default_factory=dict)
    checks: list[CheckOrder] = field(default_factory=list)
    predicate: Predicate | None = None
    postponed: set[int] = field(default_factory=set)
    failed: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.drops = DropBatch(self.shard)

    def until_s(self, lease_ms: int) -> float:
        """End of a lease of so many ms. Raises InvalidParams."""
        if not 0 <= lease_ms <= LEASE_MS_MAX:
            raise InvalidParams(field="lease_ms", value=lease_ms, allowed=f"0 to {LEASE_MS_MAX}")
        return self.now_s + lease_ms / 1000


def check_count(count: int, what: str) -> None:
    """Raises InvalidParams where one request names too many blocks."""
    if count > BLOCKS_MAX:
        raise InvalidParams(field=what, value=f"{count} blocks", allowed=f"{BLOCKS_MAX} a request")
