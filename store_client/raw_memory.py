"""Memory named by its address, as numpy arrays. Nothing is kept alive and nothing is checked: mind the lifetime."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.packed import U8

MAP_NORESERVE = 0x4000
_MAP_FIXED = 0x10

# By ctypes: Python's mmap chooses no addresses.
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)


class _Memory:
    """Any memory, described to numpy."""

    def __init__(self, address: int, shape: tuple[int, ...], typestr: str, strides: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "typestr": typestr,
            "strides": strides,
        }


def items_at(address: int, count: int, unit: int, stride: int) -> NDArray[np.void]:
    """Memory from `address` on as `count` items of `unit` bytes, one each `stride` bytes (they may overlap)."""
    return np.asarray(_Memory(address, (count,), f"|V{unit}", (stride,)))


def bytes_at(address: int, size_bytes: int) -> U8:
    """Memory as bytes."""
    return np.asarray(_Memory(address, (size_bytes,), "|u1", (1,)))


def address_of(array: NDArray[Any]) -> int:
    """Of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def map_over(address: int, size_bytes: int, protection: int, flags: int, fd: int = -1) -> bool:
    """Maps a file from its start, or nothing, over what these addresses have shown. False, with ctypes' errno: the kernel can't."""
    return bool(_mmap(address, size_bytes, protection, flags | _MAP_FIXED, fd, 0) == address)
