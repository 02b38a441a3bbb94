"""The ceiling: the hit ratio that an infinite pool would have had, so that one can see whether memory would help.

An infinite pool misses each block once, the first time that it is asked for, so its hit ratio is
1 - distinct blocks / blocks asked for. Distinct ones are counted by a HyperLogLog: 16 KiB, 0.8 % off.

Only a sample of the names is looked at, those whose lowest bits are zero: all uses of a block are seen or none, so
the ratio stays. Several samples are kept, each a part of the one before, because the requests' own samples get
thinner while a pool grows: the thickest one that has missed nothing counts.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.packed import U64, u64s

REGISTER_BITS = 14
REGISTERS = 1 << REGISTER_BITS
REST_BITS = 64 - REGISTER_BITS
SAMPLE_BITS = (0, 4, 8, 12, 16)
"""Samples are names with so many low zero bits."""

EVERYTHING_MAX = 1 << 17
"""Blocks that may be asked for until the sample of all names is given up: it costs most."""

WAITING_MAX = 256
STUDIED_MAX = 4
"""In one call: some 50 us each."""


class Asked(NamedTuple):
    """Blocks asked for and how many of them were distinct: `distinct` is an estimate, 1 / 2**sample_bits of both."""

    asked: int
    distinct: float
    sample_bits: int

    @property
    def hit_ratio(self) -> float:
        """Of an infinite pool; 0 where nothing was asked for."""
        return max(0.0, 1.0 - self.distinct / self.asked) if self.asked else 0.0


class HyperLogLog:
    """Estimates how many distinct numbers were added. Union of two: the larger of each register."""

    def __init__(self) -> None:
        self.registers: NDArray[np.uint8] = np.zeros(REGISTERS, dtype=np.uint8)

    def add(self, names: U64) -> None:
        """Names need not be evenly distributed: they are mixed first."""
        mixed = _mixed(names)
        index = (mixed >> np.uint64(REST_BITS)).astype(np.int64)
        rest = mixed & np.uint64((1 << REST_BITS) - 1)  # an exact float64, whose exponent is its bit length
        rank = (REST_BITS + 1 - np.frexp(rest.astype(np.float64))[1]).astype(np.uint8)
        np.maximum.at(self.registers, index, rank)

    def estimate(self) -> float:
        """How many distinct numbers there were."""
        empty = int(np.count_nonzero(self.registers == 0))
        raw = (
            0.7213
            / (1 + 1.079 / REGISTERS)
            * REGISTERS**2
            / float(np.exp2(-self.registers.astype(float)).sum())
        )
        if raw <= 2.5 * REGISTERS and empty:
            return float(REGISTERS * np.log(REGISTERS / empty))
        return raw


def _mixed(names: U64) -> U64:
    """splitmix64's finalizer."""
    mixed = names.copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed


class Ceiling:
    """What one shard was asked for."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[bytes, int, bytes]] = deque(maxlen=WAITING_MAX)
        self._sketches = [HyperLogLog() for _ in SAMPLE_BITS]
        self._asked = [0] * len(SAMPLE_BITS)
        self._whole = [True] * len(SAMPLE_BITS)  # whether the sample has missed nothing

    def asked(self, names: bytes, mask: int, keyspace: bytes) -> None:
        """A request wants blocks, of which these are the names (u64 each) whose bits `mask` (low ones) are zero. Equal
        names of two keyspaces are two blocks. Quick: the work is done by `study`."""
        self._waiting.append((names, mask, keyspace))

    def study(self) -> None:
        """Counts some of what was asked for lately. Some hundred times a second; what doesn't fit is not seen at all."""
        for _ in range(min(len(self._waiting), STUDIED_MAX)):
            packed, mask, keyspace = self._waiting.popleft()
            names, bits = u64s(packed), mask.bit_length()
            salt = int.from_bytes(keyspace[:8], "little")
            for level, sample_bits in enumerate(SAMPLE_BITS):
                if bits > sample_bits:
                    self._whole[level] = False
                if self._whole[level] or level == len(SAMPLE_BITS) - 1:
                    names = names[names & np.uint64((1 << sample_bits) - 1) == 0]
                    self._asked[level] += len(names)
                    if len(names):
                        self._sketches[level].add(names ^ np.uint64(salt))
            if self._asked[0] > EVERYTHING_MAX:
                self._whole[0] = False

    @property
    def waiting(self) -> int:
        """Requests that are not counted yet."""
        return len(self._waiting)

    def validate(self) -> None:
        """Asserts that thinner samples are parts of thicker ones."""
        whole = [asked for asked, holds in zip(self._asked, self._whole, strict=True) if holds]
        assert whole == sorted(whole, reverse=True)
        assert all(int(sketch.registers.max()) <= REST_BITS + 1 for sketch in self._sketches)

    @staticmethod
    def over(shards: list[Ceiling]) -> Asked:
        """Of all shards together, by the thickest sample in which none has missed anything."""
        level = max((shard._thickest() for shard in shards), default=0)
        union = HyperLogLog()
        for shard in shards:
            np.maximum(union.registers, shard._sketches[level].registers, out=union.registers)
        asked = sum(shard._asked[level] for shard in shards)
        return Asked(asked, union.estimate(), SAMPLE_BITS[level])

    def _thickest(self) -> int:
        return self._whole.index(True) if True in self._whole else len(SAMPLE_BITS) - 1
