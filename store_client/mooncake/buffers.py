"""Objects in memory that the caller names by address: registered buffers, KV cache tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moonpool.schemas.errors import MoonpoolError
from moonpool.store_client import native
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.mooncake.calls import Calls, integer_lists, integers, same_length, text, texts
from moonpool.store_client.mooncake.codes import INVALID_PARAMS, OK
from moonpool.store_client.mooncake.config import DEFAULT, ReplicateConfig
from moonpool.store_client.mooncake.pool import Pool

AddressLists = Sequence[Sequence[int]]
SizeLists = Sequence[Sequence[int]]


class BufferCalls(Calls):
    """Zero-copy puts and gets. Memory needn't be registered."""

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Remembers memory that will be used often. -600 where it overlaps memory that is registered already."""
        address, size_bytes = integers((buffer_ptr, size))
        if self._pool is None or not self._pool.buffers.add(address, size_bytes):
            return INVALID_PARAMS
        try:
            self._pool.devices.register(address, size_bytes)
        except MoonpoolError as error:
            self._pool.buffers.remove(address)
            return error.code
        return OK

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """-600 where no registered memory begins there."""
        (address,) = integers((buffer_ptr,))
        if self._pool is None or not self._pool.buffers.remove(address):
            return INVALID_PARAMS
        self._pool.devices.unregister(address)
        return OK

    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = DEFAULT) -> int:
        """Stores one object."""
        return self.batch_put_from([text(key)], [buffer_ptr], [size], config)[0]

    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig = DEFAULT,
    ) -> list[int]:
        """Stores objects: 0, or a code each."""
        return self.batch_put_from_multi_buffers(keys, *_single(buffer_ptrs, sizes), config)

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: AddressLists,
        all_sizes: SizeLists,
        config: ReplicateConfig = DEFAULT,
    ) -> list[int]:
        """Stores objects that lie in several pieces each: 0, or a code each."""
        return self._move(
            keys, all_buffer_ptrs, all_sizes, lambda pool, names, memory: pool.put(names, memory, config)
        )

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig = DEFAULT,
    ) -> int:
        """Stores metadata and data, one behind the other, as one object."""
        pointers, sizes = [metadata_buffer_ptr, buffer_ptr], [metadata_size, size]
        return self.batch_put_from_multi_buffers([text(key)], [pointers], [sizes], config)[0]

    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = DEFAULT) -> int:
        """As put_from, in the place of what the key had."""
        return self.batch_upsert_from([text(key)], [buffer_ptr], [size], config)[0]

    def batch_upsert_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig = DEFAULT,
    ) -> list[int]:
        """As batch_put_from, in the place of what the keys had."""
        return self._move(
            keys,
            *_single(buffer_ptrs, sizes),
            lambda pool, names, memory: pool.upsert(names, memory, config),
        )

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Reads one object: its size, or a code (-600: it is larger than `size`)."""
        return self.batch_get_into([text(key)], [buffer_ptr], [size])[0]

    def batch_get_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Reads objects: the size of each, or a code."""
        return self.batch_get_into_multi_buffers(keys, *_single(buffer_ptrs, sizes))

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: AddressLists,
        all_sizes: SizeLists,
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Reads objects into several pieces each: the size of each, or a code."""
        return self._move(keys, all_buffer_ptrs, all_sizes, Pool.get_into)

    def _move(
        self,
        keys: Sequence[str],
        addresses: AddressLists,
        sizes: SizeLists,
        move: Callable[[Pool, list[str], Fragments], list[int]],
    ) -> list[int]:
        names, pieces, lengths = texts(keys), integer_lists(addresses), integer_lists(sizes)
        if self._pool is None or not same_length(names, pieces, lengths):
            return [INVALID_PARAMS] * len(names)
        if not names:
            return []
        for i, (ours, theirs) in enumerate(zip(pieces, lengths, strict=True)):
            if len(ours) != len(theirs):  # no memory: refused as such
                pieces[i], lengths[i] = [], []
        memory = native.pieces(pieces, lengths)
        if memory is None:  # some of them can't be memory: those are refused
            try:
                memory = Fragments.lists(pieces, lengths)
            except OverflowError:
                return [INVALID_PARAMS] * len(names)
        return move(self._pool, names, memory)


def _single(addresses: Sequence[int], sizes: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
    """One piece an object."""
    return [[address] for address in addresses], [[size] for size in sizes]
