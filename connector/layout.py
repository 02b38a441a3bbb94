"""Where the blocks of a KV cache lie: any tensor of blocks as contiguous pieces, by its strides alone.

vLLM 0.29 and later   (blocks, heads, tokens, K and V)        NHD, HND and packed forms differ in strides only
vLLM up to 0.28       (2, blocks, tokens, heads, dim) and others, and one tensor over all layers
kernel blocks         (blocks * n, ...): n consecutive rows are one block of the block table
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.packed import I64, U64
from moonpool.store_client.fragments import Fragments


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor as numbers: address of its first element, shape, strides in elements, bytes an element."""

    name: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class _Piece:
    """A contiguous part of every block: block b has it at address + b * stride."""

    address: int
    stride_bytes: int
    size_bytes: int


class GroupLayout:
    """The pieces of one block over all layers of a group, in layer order."""

    def __init__(self, tensors: Sequence[TensorView], blocks: int) -> None:
        """`blocks`: how many the block tables can name. Raises InvalidParams for a tensor without such an axis."""
        pieces: list[_Piece] = []
        words: list[str] = []
        seen: set[int] = set()
        for tensor in tensors:
            if tensor.address in seen:
                continue  # a layer that shares the KV of another one
            seen.add(tensor.address)
            found, word = _pieces_of(tensor, blocks)
            pieces += found
            words.append(word)
        joined = _join(pieces)
        self.blocks = blocks
        self.description = f"{len(seen)} tensors: " + "; ".join(_run_lengths(words))
        """Everything that decides what the bytes of a stored block mean, and no address."""
        self._bases: I64 = np.array([p.address for p in joined], dtype=np.int64)
        self._strides: I64 = np.array([p.stride_bytes for p in joined], dtype=np.int64)
        self._sizes: U64 = np.array([p.size_bytes for p in joined], dtype=np.uint64)

    @property
    def block_bytes(self) -> int:
        """Payload of one block of this rank."""
        return int(self._sizes.sum())

    @property
    def pieces(self) -> int:
        """Contiguous pieces a block."""
        return len(self._sizes)

    def fragments(self, block_ids: Sequence[int]) -> Fragments:
        """Where these blocks lie. An id outside the block table is a bug of ours or vLLM's: InvalidParams."""
        ids = np.asarray(block_ids, dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.blocks):
            raise InvalidParams(
                field="block_ids", value=(int(ids.min()), int(ids.max())), allowed=f"0 to {self.blocks - 1}"
            )
        addresses = self._bases[None, :] + ids[:, None] * self._strides[None, :]
        return Fragments.grid(addresses.astype(np.uint64), self._sizes)


def _block_axis(tensor: TensorView, blocks: int) -> tuple[int, int]:
    """(axis of the blocks, rows of that axis a block)."""
    shape = tensor.shape
    if shape and shape[0] == blocks:
        return 0, 1
    if len(shape) > 1 and shape[1] == blocks:
        return 1, 1
    if shape and shape[0] > blocks and shape[0] % blocks == 0:
        return 0, shape[0] // blocks
    if len(shape) > 1 and shape[1] > blocks and shape[1] % blocks == 0:
        return 1, shape[1] // blocks
    raise InvalidParams(
        field=f"kv_caches[{tensor.name}].shape", value=shape, allowed=f"an axis of {blocks} blocks"
    )


def _pieces_of(tensor: TensorView, blocks: int) -> tuple[list[_Piece], str]:
    """The tensor's pieces of one block in order of memory, and what they are in words."""
    axis, rows = _block_axis(tensor, blocks)
    block_stride = tensor.strides[axis] * rows
    inner = [
        (size, stride)
        for i, (size, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True))
        if i != axis and size > 1
    ]
    if rows > 1:
        inner.append((rows, tensor.strides[axis]))
    inner.sort(key=lambda entry: entry[1], reverse=True)
    run = 1
    outer = list(inner)
    while outer and outer[-1][1] == run:
        run *= outer.pop()[0]
    offsets = [
        sum(i * stride for i, (_, stride) in zip(index, outer, strict=True))
        for index in product(*(range(size) for size, _ in outer))
    ]
    item = tensor.item_bytes
    pieces = [_Piece(tensor.address + o * item, block_stride * item, run * item) for o in offsets]
    # The order in memory is the order of strides: the same logical shape in another order is another layout.
    order = sorted(
        (i for i in range(len(tensor.shape)) if i != axis and tensor.shape[i] > 1),
        key=lambda i: -tensor.strides[i],
    )
    logical = [size if i != axis else 0 for i, size in enumerate(tensor.shape)]
    return pieces, f"{tensor.dtype} {logical} rows {rows} order {order}"


def _join(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Neighbours in every block become one piece: a layout that keeps a block's layers together copies best."""
    joined: list[_Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.stride_bytes == piece.stride_bytes
            and last.address + last.size_bytes == piece.address
        ):
            joined[-1] = _Piece(last.address, last.stride_bytes, last.size_bytes + piece.size_bytes)
        else:
            joined.append(piece)
    return joined


def _run_lengths(words: Sequence[str]) -> list[str]:
    """Equal neighbours told once: "32 x float16 ..."."""
    told: list[tuple[str, int]] = []
    for word in words:
        if told and told[-1][0] == word:
            told[-1] = (word, told[-1][1] + 1)
        else:
            told.append((word, 1))
    return [f"{count} x {word}" for word, count in told]
