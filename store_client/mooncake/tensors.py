"""Torch tensors: a header of fixed size, then the elements in row-major order."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from moonpool.store_client.mooncake.buffers import BufferCalls
from moonpool.store_client.mooncake.codes import INVALID_PARAMS, OK
from moonpool.store_client.mooncake.config import DEFAULT, ReplicateConfig
from moonpool.store_client.mooncake.objects import ObjectCalls
from moonpool.store_client.raw_memory import bytes_at

HEADER_BYTES = 304
"""As Mooncake's, so that buffers that were sized for its tensors fit; the fields are ours."""

DIMENSIONS_MAX = 32
_HEADER = struct.Struct(f"<8sII{DIMENSIONS_MAX}Q")
_MAGIC = b"MPTENSOR"
_TYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
)
"""Places in this list are stored: only append."""

Tensor = Any
"""torch.Tensor. torch is imported by the first call that needs it, and only then."""


class TensorCalls(ObjectCalls, BufferCalls):
    """Tensors, whole or split over tensor-parallel ranks under `<key>_tp_<rank>`."""

    def put_tensor(self, key: str, tensor: Tensor) -> int:
        """Stores a tensor. -600 for what isn't one, and for types and shapes that aren't known."""
        return self.batch_put_tensor([key], [tensor])[0]

    def pub_tensor(self, key: str, tensor: Tensor, config: ReplicateConfig = DEFAULT) -> int:
        """put_tensor with options."""
        return self.batch_pub_tensor([key], [tensor], config)[0]

    def upsert_tensor(self, key: str, tensor: Tensor) -> int:
        """As put_tensor, in the place of what the key had."""
        return self.batch_upsert_tensor([key], [tensor])[0]

    def upsert_pub_tensor(self, key: str, tensor: Tensor, config: ReplicateConfig = DEFAULT) -> int:
        """upsert_tensor with options."""
        return self.batch_upsert_pub_tensor([key], [tensor], config)[0]

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Tensor]) -> list[int]:
        """0, or a code each."""
        return self.batch_pub_tensor(keys, tensors_list)

    def batch_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[Tensor], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """0, or a code each."""
        return self._put_tensors(keys, tensors_list, config, replace=False)

    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[Tensor]) -> list[int]:
        """0, or a code each."""
        return self.batch_upsert_pub_tensor(keys, tensors_list)

    def batch_upsert_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[Tensor], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """0, or a code each."""
        return self._put_tensors(keys, tensors_list, config, replace=True)

    def _put_tensors(
        self, keys: Sequence[str], tensors: Sequence[Tensor], config: ReplicateConfig, *, replace: bool
    ) -> list[int]:
        if len(keys) != len(tensors):
            return [INVALID_PARAMS] * len(keys)
        put = self.upsert_parts if replace else self.put_parts
        codes = []
        for key, tensor in zip(keys, tensors, strict=True):
            parts = pack(tensor)
            codes.append(INVALID_PARAMS if parts is None else put(key, *parts, config=config))
        return codes

    def get_tensor(self, key: str) -> Tensor | None:
        """The tensor; None where it isn't there or isn't one."""
        return self.batch_get_tensor([key])[0]

    def batch_get_tensor(self, keys: Sequence[str]) -> list[Tensor | None]:
        """Tensors, None where one isn't there."""
        return [None if not value else unpack(bytearray(value)) for value in self.get_batch(keys)]

    # ------------------------------------------------------------ in the caller's memory

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Stores a tensor that lies in memory as get_tensor_into leaves it."""
        return self.batch_put_tensor_from([key], [buffer_ptr], [size])[0]

    def batch_put_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """0, or a code each."""
        return self._store_tensors(keys, buffer_ptrs, sizes, self.put_from)

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """As put_tensor_from, in the place of what the key had."""
        return self.batch_upsert_tensor_from([key], [buffer_ptr], [size])[0]

    def batch_upsert_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """0, or a code each."""
        return self._store_tensors(keys, buffer_ptrs, sizes, self.upsert_from)

    @staticmethod
    def _store_tensors(
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        store: Callable[[str, int, int], int],
    ) -> list[int]:
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(keys)
        return [
            INVALID_PARAMS if _view(pointer, size) is None else store(key, pointer, size)
            for key, pointer, size in zip(keys, buffer_ptrs, sizes, strict=True)
        ]

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Tensor | None:
        """Reads header and elements into memory: a tensor over it, or None. Keep the memory as long as that."""
        return self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]

    def batch_get_tensor_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[Tensor | None]:
        """Tensors over the memory, None where one isn't there or doesn't fit."""
        found = self.batch_get_into(keys, buffer_ptrs, sizes)
        if len(buffer_ptrs) != len(found):
            return [None] * len(found)
        return [
            _view(pointer, length) if length > 0 else None
            for pointer, length in zip(buffer_ptrs, found, strict=True)
        ]

    # ------------------------------------------------------------ tensor parallel

    def put_tensor_with_tp(
        self, key: str, tensor: Tensor, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Stores the shard of each of `tp_size` ranks; with one rank the tensor itself. -600 where it doesn't split."""
        return self.pub_tensor_with_tp(key, tensor, DEFAULT, tp_rank, tp_size, split_dim)

    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: Tensor,
        config: ReplicateConfig = DEFAULT,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """put_tensor_with_tp with options."""
        return self.batch_pub_tensor_with_tp([key], [tensor], config, tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Tensor],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """0, or a code each."""
        return self.batch_pub_tensor_with_tp(base_keys, tensors_list, DEFAULT, tp_rank, tp_size, split_dim)

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Tensor],
        config: ReplicateConfig = DEFAULT,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """0, or a code each."""
        if tp_size <= 1:
            return self.batch_pub_tensor(base_keys, tensors_list, config)
        if len(base_keys) != len(tensors_list):
            return [INVALID_PARAMS] * len(base_keys)
        codes = []
        for key, tensor in zip(base_keys, tensors_list, strict=True):
            shards = _split(tensor, tp_size, split_dim)
            names = [shard_key(key, rank) for rank in range(len(shards))]
            done = self.batch_pub_tensor(names, shards, config)
            codes.append(next((code for code in done if code != OK), OK) if done else INVALID_PARAMS)
        return codes

    def get_tensor_with_tp(
        self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Tensor | None:
        """One rank's shard; with one rank the tensor itself. None where it isn't there."""
        return self.batch_get_tensor_with_tp([key], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp(
        self, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1
    ) -> list[Tensor | None]:
        """One rank's shards."""
        return self.batch_get_tensor(_shard_keys(base_keys, tp_rank, tp_size))

    def put_tensor_with_tp_from(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """put_tensor_with_tp of a whole tensor that lies in memory as get_tensor_into leaves it."""
        return self.batch_put_tensor_with_tp_from([key], [buffer_ptr], [size], tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """0, or a code each."""
        if not len(base_keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID_PARAMS] * len(base_keys)
        tensors = [_view(pointer, size) for pointer, size in zip(buffer_ptrs, sizes, strict=True)]
        return self.batch_put_tensor_with_tp(base_keys, tensors, tp_rank, tp_size, split_dim)

    def get_tensor_with_tp_into(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Tensor | None:
        """get_tensor_into of one rank's shard."""
        return self.batch_get_tensor_with_tp_into([key], [buffer_ptr], [size], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Tensor | None]:
        """Tensors over the memory."""
        return self.batch_get_tensor_into(_shard_keys(base_keys, tp_rank, tp_size), buffer_ptrs, sizes)


def shard_key(key: str, rank: int) -> str:
    """Under which a rank's shard is stored."""
    return f"{key}_tp_{rank}"


def _shard_keys(keys: Sequence[str], rank: int, size: int) -> list[str]:
    return list(keys) if size <= 1 else [shard_key(key, rank) for key in keys]


def pack(tensor: Tensor) -> tuple[bytes, Any] | None:
    """Header and elements; None for what can't be stored."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.dim() > DIMENSIONS_MAX:
        return None
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TYPES:
        return None
    dimensions = [*tensor.shape, *[0] * (DIMENSIONS_MAX - tensor.dim())]
    header = _HEADER.pack(_MAGIC, _TYPES.index(name), tensor.dim(), *dimensions).ljust(HEADER_BYTES, b"\0")
    elements = tensor.detach().cpu().contiguous()
    return header, elements.reshape(-1).view(torch.uint8).numpy() if elements.numel() else b""


def unpack(memory: Any) -> Tensor | None:
    """A tensor over writable memory that `pack` has filled; None where it holds something else."""
    import torch

    if len(memory) < HEADER_BYTES:
        return None
    magic, kind, rank, *dimensions = _HEADER.unpack_from(memory)
    if magic != _MAGIC or kind >= len(_TYPES) or rank > DIMENSIONS_MAX:
        return None
    dtype = getattr(torch, _TYPES[kind])
    shape = dimensions[:rank]
    count = 1
    for dimension in shape:
        count *= dimension
    if len(memory) != HEADER_BYTES + count * dtype.itemsize:
        return None
    if not count:
        try:
            return torch.empty(shape, dtype=dtype)
        except (TypeError, RuntimeError):  # dimensions beside the 0 that no tensor can have
            return None
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=HEADER_BYTES).reshape(shape)


def _view(pointer: int, size: int) -> Tensor | None:
    return unpack(bytes_at(pointer, size).data) if pointer and size >= HEADER_BYTES else None


def _split(tensor: Tensor, parts: int, dimension: int) -> list[Tensor]:
    """Equal shards; none where the tensor doesn't split so."""
    import torch

    if (
        not isinstance(tensor, torch.Tensor)
        or not 0 <= dimension < tensor.dim()
        or tensor.shape[dimension] % parts
    ):
        return []
    return list(torch.chunk(tensor, parts, dim=dimension))
