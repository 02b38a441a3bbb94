"""What may be handed in as memory, and the errors for what may not."""

from __future__ import annotations

import array

import numpy as np
import pytest
import torch

from moonpool.schemas.errors import InvalidParams
from moonpool.store_client.buffers import fragments_of, memory_of, multi_buffers
from moonpool.store_client.raw_memory import bytes_at

TEXT = b"0123456789abcdef"


@pytest.mark.parametrize(
    "buffer",
    [
        TEXT,
        bytearray(TEXT),
        memoryview(TEXT),
        memoryview(bytearray(b"xx" + TEXT))[2:],
        array.array("H", TEXT),
        np.frombuffer(TEXT, dtype=np.float32),
        np.frombuffer(TEXT, dtype=np.uint16).reshape(2, 4),
        torch.frombuffer(bytearray(TEXT), dtype=torch.bfloat16),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_anything_contiguous_can_be_read(buffer: object) -> None:
    memory = memory_of(buffer, writable=False)
    assert bytes(bytes_at(memory.address, memory.size_bytes)) == TEXT


def test_a_pair_is_taken_as_it_is() -> None:
    memory = memory_of((4096, 10), writable=True)
    assert (memory.address, memory.size_bytes) == (4096, 10)


@pytest.mark.parametrize("empty", [b"", bytearray(), np.zeros(0), (0, 0), torch.zeros(0)])
def test_nothing_is_no_bytes(empty: object) -> None:
    assert memory_of(empty, writable=False).size_bytes == 0


@pytest.mark.parametrize(
    ("buffer", "complaint"),
    [
        (TEXT, "read-only bytes"),
        (memoryview(TEXT), "read-only memoryview"),
        (np.arange(10)[::2], "strides"),
        (torch.zeros(4, 4).t(), "a tensor with strides"),
        ((1, 2, 3), "both integers"),
        ((1.5, 2), "both integers"),
        ((0, 5), "an address over 0"),
        ((5, -1), "a size from 0 on"),
        ("text", "'str'"),
        (None, "'NoneType'"),
    ],
)
def test_what_cannot_be_written_to_is_named(buffer: object, complaint: str) -> None:
    with pytest.raises(InvalidParams, match="dest") as raised:
        memory_of(buffer, writable=True, what="dest")
    assert complaint in str(raised.value)


def test_fragments_keep_the_shape() -> None:
    fragments, keep = fragments_of([[b"ab", b"cde"], [], [b"f"]], writable=False)
    assert fragments.lengths().tolist() == [5, 0, 1]
    assert fragments.offsets.tolist() == [0, 2, 2, 3]
    assert [bytes(bytes_at(m.address, m.size_bytes)) for m in keep] == [b"ab", b"cde", b"f"]


def test_multi_buffers_take_addresses_or_buffers() -> None:
    block = bytearray(b"0123456789")
    at = memory_of(block, writable=True).address
    by_address, _ = multi_buffers([[at, at + 5]], [[3, 2]], writable=True)
    by_buffer, _ = multi_buffers([[memoryview(block)[:3], memoryview(block)[5:7]]], None, writable=True)
    assert by_address.addresses.tolist() == by_buffer.addresses.tolist() == [at, at + 5]
    with pytest.raises(InvalidParams, match="one size for each address"):
        multi_buffers([[at, at + 5]], [[3]], writable=True)
    with pytest.raises(InvalidParams, match="one size for each address"):
        multi_buffers([[at]], [[3], [4]], writable=True)
