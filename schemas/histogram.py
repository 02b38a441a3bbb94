"""Histograms whose buckets are powers of two: adding a value is two operations on plain ints."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Log2Histogram:
    """Bucket i counts values below `unit` * 2**i (and not below the bucket before); the last one takes the rest."""

    __slots__ = ("counts", "sum", "unit")

    def __init__(self, unit: float, buckets: int) -> None:
        self.unit = unit
        self.counts = [0] * buckets
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Counts one value of 0 or more."""
        bucket = int(value / self.unit).bit_length()
        counts = self.counts
        counts[bucket if bucket < len(counts) else -1] += 1
        self.sum += value

    def add_all(self, values: NDArray[np.float64]) -> None:
        """Counts values of 0 or more."""
        buckets = np.frexp(np.floor(values / self.unit))[
            1
        ]  # the exponent is what bit_length is for an integer
        added = np.bincount(np.minimum(buckets, len(self.counts) - 1), minlength=len(self.counts))
        self.counts = [before + more for before, more in zip(self.counts, added.tolist(), strict=True)]
        self.sum += float(values.sum())

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self.counts)

    def bounds(self) -> list[float]:
        """Upper bound of each bucket but the last, which has none."""
        return [self.unit * (1 << index) for index in range(len(self.counts) - 1)]

    def copy(self) -> Log2Histogram:
        """As it is now."""
        other = Log2Histogram(self.unit, 0)
        other.counts, other.sum = self.counts.copy(), self.sum
        return other
