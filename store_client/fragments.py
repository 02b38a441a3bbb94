"""Where objects lie in a process's memory: for each object one or more (address, size) pieces, as columns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.packed import I64, U64


class Fragments(msgspec.Struct, frozen=True, eq=False):
    """Pieces of memory of `count` objects; object i has the pieces offsets[i] to offsets[i + 1].

    Addresses are host addresses, or device addresses where the client's copier says so.
    """

    addresses: U64
    sizes: U64
    offsets: I64
    _lengths: U64 | None = None

    @property
    def count(self) -> int:
        """Number of objects."""
        return len(self.offsets) - 1

    def lengths(self) -> U64:
        """Bytes of each object, u64. Not to be changed: they are computed once."""
        if self._lengths is None:
            total = np.zeros(len(self.sizes) + 1, dtype=np.uint64)
            np.cumsum(self.sizes, out=total[1:])
            lengths: U64 = total[self.offsets[1:]] - total[self.offsets[:-1]]
            msgspec.structs.force_setattr(self, "_lengths", lengths)
            return lengths
        return self._lengths

    def take(self, objects: NDArray[np.intp] | Sequence[int]) -> Fragments:
        """The same of some of the objects, in the order given."""
        index = np.asarray(objects, dtype=np.intp)
        counts = self.offsets[index + 1] - self.offsets[index]
        offsets = np.zeros(len(index) + 1, dtype=np.int64)
        np.cumsum(counts, out=offsets[1:])
        pieces = np.repeat(self.offsets[index] - offsets[:-1], counts) + np.arange(offsets[-1])
        return Fragments(self.addresses[pieces], self.sizes[pieces], offsets)

    @staticmethod
    def grid(addresses: U64, sizes: U64) -> Fragments:
        """From a (objects, pieces) array of addresses and the size of each piece (one row, or a full grid)."""
        objects, pieces = addresses.shape
        return Fragments(
            np.ascontiguousarray(addresses).reshape(-1),
            np.ascontiguousarray(np.broadcast_to(sizes, addresses.shape)).reshape(-1),
            np.arange(0, objects * pieces + 1, pieces, dtype=np.int64),
        )

    @staticmethod
    def lists(addresses: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> Fragments:
        """From a list of pieces an object, as Mooncake's multi-buffer calls have them."""
        if [len(a) for a in addresses] != [len(s) for s in sizes]:
            raise InvalidParams(field="sizes", value="another shape", allowed="one size for each address")
        offsets = np.zeros(len(addresses) + 1, dtype=np.int64)
        np.cumsum([len(a) for a in addresses], out=offsets[1:])
        return Fragments(
            np.array([a for pieces in addresses for a in pieces], dtype=np.uint64),
            np.array([s for pieces in sizes for s in pieces], dtype=np.uint64),
            offsets,
        )
