"""Columns on the wire: equal-sized values packed in one byte string, so that no message holds a list per block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import InvalidParams

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

Number = TypeVar("Number", np.uint32, np.int64)


_U16, _U32, _U64 = np.dtype("<u2"), np.dtype("<u4"), np.dtype("<u8")
_NAMES = {size: np.dtype(f"S{size}") for size in (16, 32)}
"""Made once: numpy takes as long to make one as for the view."""


class PackedHashes(Sequence[bytes]):
    """Hashes of one size that lie in one byte string: as good as a list of them, and made in no time."""

    __slots__ = ("hash_bytes", "packed")

    def __init__(self, packed: bytes, hash_bytes: int) -> None:
        """Raises InvalidParams where they don't fit."""
        count_of(packed, hash_bytes, "hashes")
        self.packed = packed
        self.hash_bytes = hash_bytes

    def __len__(self) -> int:
        return len(self.packed) // self.hash_bytes

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> PackedHashes: ...

    def __getitem__(self, index: int | slice) -> bytes | PackedHashes:
        size = self.hash_bytes
        if isinstance(index, int):
            at = range(len(self))[index] * size
            return self.packed[at : at + size]
        first, end, step = index.indices(len(self))
        if step != 1:
            return PackedHashes(b"".join(split_hashes(self.packed, size)[index]), size)
        return PackedHashes(self.packed[first * size : max(first, end) * size], size)

    def __iter__(self) -> Iterator[bytes]:
        return iter(split_hashes(self.packed, self.hash_bytes))

    def padded(self) -> NDArray[np.bytes_]:
        """As headers are compared with."""
        dtype = _NAMES.get(self.hash_bytes) or np.dtype(f"S{self.hash_bytes}")
        return np.frombuffer(self.packed, dtype)


def split_hashes(packed: bytes, hash_bytes: int) -> list[bytes]:
    """`packed` as a list of hashes of `hash_bytes` each."""
    count_of(packed, hash_bytes, "hashes")
    if not packed:
        return []
    hashes: list[bytes] = np.frombuffer(
        packed, dtype=f"V{hash_bytes}"
    ).tolist()  # five times as fast as slices
    return hashes


def join_hashes(hashes: Iterable[bytes]) -> bytes:
    """Hashes of one size as one byte string."""
    return hashes.packed if isinstance(hashes, PackedHashes) else b"".join(hashes)


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """Sorted, each once. numpy's unique hashes them first, which takes thirty times as long."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def count_of(packed: bytes, item_bytes: int, field: str) -> int:
    """How many items `packed` holds. Raises InvalidParams where its length isn't a multiple."""
    count, rest = divmod(len(packed), item_bytes)
    if rest:
        raise InvalidParams(field=field, value=f"{len(packed)} bytes", allowed=f"a multiple of {item_bytes}")
    return count


def all_zero(values: U8) -> bool:
    """Whether there is nothing else in them. numpy's own ways take several times as long for a few."""
    packed = values.tobytes()
    return packed.count(0) == len(packed)


def u16s(packed: bytes) -> U16:
    """View of little-endian u16 values, read-only."""
    return np.frombuffer(packed, _U16)


def u32s(packed: bytes) -> U32:
    """View of little-endian u32 values, read-only."""
    return np.frombuffer(packed, _U32)


def u64s(packed: bytes) -> U64:
    """View of little-endian u64 values, read-only."""
    return np.frombuffer(packed, _U64)


def pack_u16(values: Sequence[int] | NDArray[np.generic]) -> bytes:
    """Values as little-endian u16."""
    return np.asarray(values, dtype="<u2").tobytes()


def pack_u32(values: Sequence[int] | NDArray[np.generic]) -> bytes:
    """Values as little-endian u32."""
    return np.asarray(values, dtype="<u4").tobytes()


def pack_u64(values: Sequence[int] | NDArray[np.generic]) -> bytes:
    """Values as little-endian u64."""
    return np.asarray(values, dtype="<u8").tobytes()
