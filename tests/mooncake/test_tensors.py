"""Torch tensors, whole and split over tensor-parallel ranks."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from support.mooncake_pools import Memory, Pool

from moonpool.store_client.mooncake.tensors import pack, unpack

INVALID_PARAMS = -600
TYPES = "float16 bfloat16 float32 float64 int8 uint8 int16 uint16 int32 int64 bool float8_e4m3fn float8_e5m2"
CUBE = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
WEIGHT = torch.arange(32, dtype=torch.float32).reshape(4, 8)


@pytest.mark.parametrize("name", TYPES.split())
def test_types(store: Any, key: str, name: str) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    assert store.put_tensor(key, tensor) == 0
    back = store.get_tensor(key)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_one_tensor(pool: Pool, store: Any, key: str) -> None:
    assert store.get_tensor(key) is None
    assert store.put_tensor(key, CUBE) == 0
    assert store.put_tensor(key, CUBE + 1) == 0
    assert torch.equal(store.get_tensor(key), CUBE)
    assert store.get_size(key) == pool.module._tensor_metadata_size() + CUBE.nbytes
    assert store.upsert_tensor(key, CUBE + 2) == 0
    assert torch.equal(store.get_tensor(key), CUBE + 2)
    assert store.put_tensor(f"{key}-t", WEIGHT.t()) == 0
    assert torch.equal(store.get_tensor(f"{key}-t"), WEIGHT.t())


def test_odd_tensors(pool: Pool, store: Any, key: str) -> None:
    assert store.put_tensor(f"{key}-list", [1, 2]) == INVALID_PARAMS
    assert store.put_tensor(f"{key}-complex", torch.ones(2, dtype=torch.complex64)) == INVALID_PARAMS
    assert store.put_tensor(f"{key}-empty", torch.zeros(0)) == 0
    assert store.put_tensor(f"{key}-scalar", torch.tensor(3.0)) == 0
    scalar = store.get_tensor(f"{key}-scalar")
    assert scalar.item() == 3.0
    assert scalar.dim() == pool.expected("scalar-tensor", mooncake=1, moonpool=0)
    store.put(f"{key}-bytes", b"no tensor at all" * 100)
    assert store.get_tensor(f"{key}-bytes") is None


def test_batches(pool: Pool, store: Any, key: str) -> None:
    keys = [f"{key}-{i}" for i in range(2)]
    assert store.batch_put_tensor(keys, [CUBE, WEIGHT]) == [0, 0]
    found = store.batch_get_tensor([keys[1], f"{key}-nothing", keys[0]])
    assert torch.equal(found[0], WEIGHT)
    assert found[1] is None
    assert torch.equal(found[2], CUBE)
    assert store.batch_put_tensor(keys, [CUBE]) == [INVALID_PARAMS] * 2
    config = pool.config()
    assert store.pub_tensor(f"{key}-2", CUBE, config) == 0
    assert store.batch_pub_tensor([f"{key}-3"], [CUBE], config) == [0]
    assert store.batch_upsert_tensor([keys[0], f"{key}-4"], [WEIGHT, CUBE]) == [0, 0]
    assert torch.equal(store.get_tensor(keys[0]), WEIGHT)


def test_in_the_callers_memory(store: Any, memory: Memory, key: str) -> None:
    store.put_tensor(key, CUBE)
    address = memory.address
    assert torch.equal(store.get_tensor_into(key, address, 65536), CUBE)
    assert store.get_tensor_into(key, address, 64) is None
    assert store.get_tensor_into(f"{key}-nothing", address, 65536) is None
    assert store.put_tensor_from(f"{key}-copy", address, store.get_size(key)) == 0
    assert torch.equal(store.get_tensor(f"{key}-copy"), CUBE)
    assert store.put_tensor_from(f"{key}-junk", address + 40_000, 10) == INVALID_PARAMS
    assert store.upsert_tensor_from(f"{key}-copy", address, store.get_size(key)) == 0
    assert store.batch_upsert_tensor_from([f"{key}-copy"], [address], [store.get_size(key)]) == [0]
    found = store.batch_get_tensor_into([key, f"{key}-nothing"], [address, address + 65536], [65536, 65536])
    assert torch.equal(found[0], CUBE)
    assert found[1] is None


def test_shards(pool: Pool, store: Any, memory: Memory, key: str) -> None:
    assert store.put_tensor_with_tp(key, WEIGHT, tp_rank=0, tp_size=2, split_dim=1) == 0
    assert store.batch_is_exist([key, f"{key}_tp_0", f"{key}_tp_1", f"{key}_tp_2"]) == [0, 1, 1, 0]
    right = WEIGHT[:, 4:]
    assert torch.equal(store.get_tensor_with_tp(key, tp_rank=1, tp_size=2, split_dim=1), right)
    assert torch.equal(store.get_tensor(f"{key}_tp_1"), right)
    assert store.get_tensor_with_tp(key, tp_rank=0, tp_size=1) is None
    assert store.get_tensor_with_tp(key, tp_rank=3, tp_size=4) is None
    into = store.get_tensor_with_tp_into(key, memory.address, 65536, tp_rank=1, tp_size=2, split_dim=1)
    assert torch.equal(into, right)
    assert store.put_tensor_with_tp(f"{key}-1", WEIGHT) == 0
    assert torch.equal(store.get_tensor(f"{key}-1"), WEIGHT)


def test_batches_of_shards(pool: Pool, store: Any, memory: Memory, key: str) -> None:
    keys = [f"{key}-{i}" for i in range(2)]
    assert store.batch_put_tensor_with_tp(keys, [WEIGHT, WEIGHT * 2], tp_rank=0, tp_size=2, split_dim=0) == [
        0,
        0,
    ]
    found = store.batch_get_tensor_with_tp([*keys, f"{key}-nothing"], tp_rank=1, tp_size=2)
    assert torch.equal(found[0], WEIGHT[2:])
    assert torch.equal(found[1], WEIGHT[2:] * 2)
    assert found[2] is None
    places = [memory.address, memory.address + 65536]
    into = store.batch_get_tensor_with_tp_into(keys, places, [65536] * 2, tp_rank=1, tp_size=2)
    assert torch.equal(into[1], WEIGHT[2:] * 2)
    assert store.pub_tensor_with_tp(f"{key}-pub", WEIGHT, pool.config(), 0, 2, 0) == 0
    store.put_tensor(f"{key}-whole", WEIGHT)
    size = store.get_into(f"{key}-whole", memory.address, 65536)
    assert store.put_tensor_with_tp_from(f"{key}-from", memory.address, size, 0, 2, 1) == 0
    assert torch.equal(store.get_tensor_with_tp(f"{key}-from", 1, 2, 1), WEIGHT[:, 4:])


@pytest.mark.parametrize(("rows", "size", "dimension"), [(5, 2, 0), (4, 2, 5), (2, 4, 0)])
def test_what_does_not_split(store: Any, key: str, rows: int, size: int, dimension: int) -> None:
    tensor = torch.zeros(rows, 2)
    assert store.put_tensor_with_tp(key, tensor, tp_size=size, split_dim=dimension) == INVALID_PARAMS
    assert store.batch_is_exist([f"{key}_tp_{rank}" for rank in range(size)]) == [0] * size


@pytest.mark.parametrize("shape", [(0, 1 << 63), (0, 1 << 62, 1 << 62), (1 << 63, 1 << 63), (1 << 40,)])
def test_shapes_that_no_tensor_can_have(shape: tuple[int, ...]) -> None:
    """Anybody may have stored such bytes."""
    whole, elements = pack(torch.zeros(0)) or (b"", b"")
    dimensions = struct.pack(f"<{len(shape)}Q", *shape)
    rank = struct.pack("<I", len(shape))
    header = whole[:12] + rank + dimensions + whole[16 + len(dimensions) :]
    assert unpack(bytearray(header)) is None
    assert unpack(bytearray(whole + elements)) is not None
