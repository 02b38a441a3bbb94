"""Evictions counted: why rows went, and how long they had not been used."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.histogram import Log2Histogram

AGE_UNIT_S = 1.0
AGE_BUCKETS = 21  # up to six days, and the rest


class Reason(IntEnum):
    """Why a row made room."""

    LEAF = 0  # it was worth least of all that nothing hung on
    LEASED = 1  # no leaf was free, and the lease of a lookup yields to a put in need
    BELOW_TRUNK = 2  # it hung on a row of the node in need, where no leaf lay
    COPY = 3  # other nodes have it too: the row stays


class Evictions:
    """Of one shard."""

    def __init__(self) -> None:
        self.by_reason = [0] * len(Reason)
        self.ages = Log2Histogram(AGE_UNIT_S, AGE_BUCKETS)

    def evicted(self, reason: Reason, age_s: float) -> None:
        """A row has made room. `age_s`: since its last use."""
        self.by_reason[reason] += 1
        self.ages.add(max(0.0, age_s))

    def evicted_all(self, reason: Reason, ages_s: NDArray[np.float64]) -> None:
        """Rows have made room."""
        self.by_reason[reason] += len(ages_s)
        self.ages.add_all(np.maximum(ages_s, 0.0))

    @property
    def rows(self) -> int:
        """All together."""
        return sum(self.by_reason) - self.by_reason[Reason.COPY]
