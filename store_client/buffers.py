"""What callers may hand in as memory: buffers, tensors, (address, size) pairs. Turned into addresses, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from moonpool.schemas.errors import InvalidParams
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.native import pieces
from moonpool.store_client.raw_memory import address_of

Buffer: TypeAlias = Any
"""bytes, bytearray, memoryview, a numpy array (anything with the buffer protocol), a torch tensor, or a pair
(address, size in bytes). Must be contiguous; a destination must be writable."""


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """A contiguous range. `keep` holds on to whatever owns it."""

    address: int
    size_bytes: int
    keep: object = field(default=None, repr=False)


def memory_of(buffer: Buffer, *, writable: bool, what: str = "buffer") -> Memory:
    """The memory of any Buffer. Raises InvalidParams, naming `what`, where it can't be used."""
    if isinstance(buffer, bytes) and buffer and not writable:
        return Memory(address_of(np.frombuffer(buffer, dtype=np.uint8)), len(buffer), buffer)
    if isinstance(buffer, tuple):
        return _of_pair(buffer, what)
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "element_size"):
        return _of_tensor(buffer, what)
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError) as error:
        raise InvalidParams(
            field=what, value=type(buffer).__name__, allowed="a buffer, a tensor or (address, size)"
        ) from error
    if not view.c_contiguous:
        raise InvalidParams(field=what, value=f"strides {view.strides}", allowed="contiguous memory")
    if writable and view.readonly:
        raise InvalidParams(
            field=what, value=f"a read-only {type(buffer).__name__}", allowed="writable memory to read into"
        )
    if view.nbytes == 0:
        return Memory(0, 0)
    array = np.frombuffer(view.cast("B") if view.format != "B" or view.ndim != 1 else view, dtype=np.uint8)
    return Memory(address_of(array), view.nbytes, array)


def _of_pair(pair: tuple[Any, ...], what: str) -> Memory:
    if len(pair) != 2 or not all(isinstance(part, int) for part in pair):
        raise InvalidParams(field=what, value=pair, allowed="(address, size), both integers")
    address, size_bytes = pair
    if size_bytes < 0 or address < 0 or address + size_bytes >= 1 << 64 or (size_bytes and not address):
        raise InvalidParams(field=what, value=pair, allowed="an address over 0 and a size from 0 on")
    return Memory(address, size_bytes)


def _of_tensor(tensor: Any, what: str) -> Memory:
    """A torch tensor (known by its methods, so that torch needn't be there). Its device is the copier's affair."""
    if not tensor.is_contiguous():
        raise InvalidParams(
            field=what, value=f"a tensor with strides {tensor.stride()}", allowed="a contiguous tensor"
        )
    return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)


def fragments_of(
    parts: Sequence[Sequence[Buffer]], *, writable: bool, what: str = "buffers"
) -> tuple[Fragments, list[Memory]]:
    """One list of buffers an object. Keep the second result for as long as the first is used."""
    memories = [
        memory_of(part, writable=writable, what=f"{what}[{i}]")
        for i, buffers in enumerate(parts)
        for part in buffers
    ]
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(buffers) for buffers in parts], out=offsets[1:])
    fragments = Fragments(
        np.array([memory.address for memory in memories], dtype=np.uint64),
        np.array([memory.size_bytes for memory in memories], dtype=np.uint64),
        offsets,
    )
    return fragments, memories


def multi_buffers(
    addresses: Sequence[Sequence[Any]], sizes: Sequence[Sequence[int]] | None, *, writable: bool
) -> tuple[Fragments, list[Memory]]:
    """Mooncake's multi-buffer form: lists of addresses (integers, with `sizes`) or of Buffers (`sizes` None)."""
    if sizes is None:
        return fragments_of(addresses, writable=writable, what="addresses")
    columns = pieces(addresses, sizes)
    if columns is not None:
        return columns, []
    # Looked at one by one they give the error that says what is wrong.
    if list(map(len, addresses)) != list(map(len, sizes)):
        raise InvalidParams(field="sizes", value="another shape", allowed="one size for each address")
    pairs = [
        list(zip(starts, lengths, strict=True)) for starts, lengths in zip(addresses, sizes, strict=True)
    ]
    return fragments_of(pairs, writable=writable, what="addresses")
