"""Blocks found by strides: every layout that vLLM has had, read back through the pieces."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from moonpool.connector.layout import GroupLayout, TensorView
from moonpool.schemas.errors import InvalidParams

BLOCKS, HEADS, TOKENS, DIM = 7, 2, 4, 6


def view(array: np.ndarray[Any, Any], name: str = "layer") -> TensorView:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return TensorView(name, array.ctypes.data, array.shape, strides, array.itemsize, str(array.dtype))


def read(layout: GroupLayout, block: int) -> bytes:
    fragments = layout.fragments([block])
    pieces = zip(fragments.addresses, fragments.sizes, strict=True)
    return b"".join(ctypes.string_at(int(address), int(size)) for address, size in pieces)


def filled(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)


def test_contiguous_blocks_are_one_piece() -> None:
    array = filled(BLOCKS, HEADS, TOKENS, 2 * DIM)
    layout = GroupLayout([view(array)], BLOCKS)
    assert layout.pieces == 1
    assert read(layout, 3) == array[3].tobytes()


def test_tokens_before_heads_are_one_piece_too() -> None:
    memory = filled(BLOCKS, TOKENS, HEADS, 2 * DIM)
    layout = GroupLayout([view(memory.transpose(0, 2, 1, 3))], BLOCKS)
    assert layout.pieces == 1
    assert read(layout, 5) == memory[5].tobytes()


def test_keys_and_values_apart_are_two_pieces() -> None:
    array = filled(2, BLOCKS, TOKENS, HEADS, DIM)
    layout = GroupLayout([view(array)], BLOCKS)
    assert layout.pieces == 2
    assert read(layout, 6) == array[0, 6].tobytes() + array[1, 6].tobytes()


def test_heads_outermost_are_a_piece_each() -> None:
    memory = filled(HEADS, BLOCKS, TOKENS, 2 * DIM)
    layout = GroupLayout([view(memory.transpose(1, 0, 2, 3))], BLOCKS)
    assert layout.pieces == HEADS
    assert read(layout, 2) == memory[0, 2].tobytes() + memory[1, 2].tobytes()


def test_layers_of_a_block_that_lie_together_become_one_piece() -> None:
    memory = filled(BLOCKS, 3, TOKENS, HEADS, DIM)
    layers = [view(memory[:, i]) for i in range(3)]
    layout = GroupLayout(layers, BLOCKS)
    assert layout.pieces == 1
    assert read(layout, 4) == memory[4].tobytes()
    whole = GroupLayout([view(memory)], BLOCKS)
    assert read(whole, 4) == memory[4].tobytes()


def test_kernel_blocks_make_up_a_block() -> None:
    array = filled(BLOCKS * 4, HEADS, TOKENS, DIM)
    layout = GroupLayout([view(array)], BLOCKS)
    assert layout.pieces == 1
    assert read(layout, 2) == array[8:12].tobytes()


def test_padding_between_blocks_is_not_stored() -> None:
    memory = filled(BLOCKS, HEADS * TOKENS * DIM + 5)
    inner = memory[:, : HEADS * TOKENS * DIM]
    layout = GroupLayout([view(inner)], BLOCKS)
    assert layout.block_bytes == HEADS * TOKENS * DIM * 2
    assert read(layout, 1) == inner[1].tobytes()


def test_a_layer_that_shares_anothers_memory_counts_once() -> None:
    array = filled(BLOCKS, TOKENS)
    assert GroupLayout([view(array, "a"), view(array, "b")], BLOCKS).block_bytes == TOKENS * 2


def test_the_description_tells_layouts_apart_and_addresses_not() -> None:
    one, two = filled(BLOCKS, HEADS, TOKENS, DIM), filled(BLOCKS, HEADS, TOKENS, DIM)
    swapped = filled(BLOCKS, TOKENS, HEADS, DIM).transpose(0, 2, 1, 3)
    described = [GroupLayout([view(array)], BLOCKS).description for array in (one, two, swapped)]
    assert described[0] == described[1] != described[2]
    assert GroupLayout([view(one.astype(np.int16))], BLOCKS).description != described[0]


def test_what_is_not_a_block_is_refused() -> None:
    with pytest.raises(InvalidParams, match="an axis of 7 blocks"):
        GroupLayout([view(filled(5, 4))], BLOCKS)
    layout = GroupLayout([view(filled(BLOCKS, 4))], BLOCKS)
    for bad in (-1, BLOCKS):
        with pytest.raises(InvalidParams, match="block_ids"):
            layout.fragments([0, bad])
