"""Parts of objects. Whole objects travel, and the parts are cut from them or put together here."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.store_client.buffers import fragments_of
from moonpool.store_client.mooncake.buffers import AddressLists, SizeLists
from moonpool.store_client.mooncake.calls import Calls, integer_lists, integers, same_length, texts
from moonpool.store_client.mooncake.codes import ALREADY_EXISTS, INVALID_PARAMS, NOT_FOUND, OK
from moonpool.store_client.mooncake.config import DEFAULT, ReplicateConfig
from moonpool.store_client.mooncake.pool import Pool
from moonpool.store_client.raw_memory import bytes_at

Offsets = Sequence[Sequence[Sequence[int]]]

SESSION_BYTES_MAX = 1 << 32
"""Of all objects that one store has put sessions for: they are put together in this process."""


class RangeCalls(Calls):
    """get_into_ranges, and the sessions of the multi-buffer ranges."""

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Offsets,
        all_src_offsets: Offsets,
        all_sizes: Offsets,
    ) -> list[list[list[int]]]:
        """Reads parts of objects into buffers: for each buffer, key and part the bytes read, or a code."""
        keys = [texts(part) for part in all_keys]
        shape = [[[INVALID_PARAMS] * len(sizes) for sizes in part] for part in all_sizes]
        addresses = integers(buffer_ptrs)
        if self._pool is None or not same_length(
            addresses, keys, all_dst_offsets, all_src_offsets, all_sizes
        ):
            return shape
        for buffer, address in enumerate(addresses):
            columns = keys[buffer], all_dst_offsets[buffer], all_src_offsets[buffer], all_sizes[buffer]
            if not same_length(*columns):
                continue
            values = self._pool.get(keys[buffer])
            for at, value in enumerate(values):
                parts = [integers(column[at]) for column in columns[1:]]
                shape[buffer][at] = _scatter(value, address, *parts)
        return shape

    # ------------------------------------------------------------ get sessions

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """Opens reading of parts: 0 a key, or a code."""
        names = texts(keys)
        if self._pool is None:
            return [INVALID_PARAMS] * len(names)
        codes = [OK if size > 0 else size for size in self._pool.sizes(names)]
        self._pool.read_sessions.update(
            (name, None) for name, code in zip(names, codes, strict=True) if code == OK
        )
        return codes

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: AddressLists,
        all_sizes: SizeLists,
        all_src_offsets: SizeLists,
    ) -> list[int]:
        """Reads parts of objects with a session: the bytes read of each, or a code."""
        names = texts(keys)
        columns = integer_lists(all_buffer_ptrs), integer_lists(all_sizes), integer_lists(all_src_offsets)
        if self._pool is None or not same_length(names, *columns):
            return [INVALID_PARAMS] * len(names)
        # Looked at once: sessions of other threads come and go.
        good = [
            name in self._pool.read_sessions and same_length(*parts)
            for name, *parts in zip(names, *columns, strict=True)
        ]
        values = iter(self._pool.get([name for name, one in zip(names, good, strict=True) if one]))
        codes = []
        for one, addresses, sizes, offsets in zip(good, *columns, strict=True):
            if not one:
                codes.append(INVALID_PARAMS)
                continue
            value = next(values)
            found = [
                _scatter(value, address, [0], [offset], [size])[0]
                for address, offset, size in zip(addresses, offsets, sizes, strict=True)
            ]
            codes.append(next((code for code in found if code < 0), sum(found)))
        return codes

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """Always 0."""
        for name in texts(keys):
            if self._pool is not None:
                self._pool.read_sessions.pop(name, None)
        return OK

    # ------------------------------------------------------------ put sessions

    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """Opens writing of parts: 0 a key, -705 where it is there already or has a session, or a code."""
        names, lengths = texts(keys), integers(sizes)
        if self._pool is None or not same_length(names, lengths):
            return [INVALID_PARAMS] * len(names)
        codes = self._pool.exist(names)
        for i, (name, size) in enumerate(zip(names, lengths, strict=True)):
            if codes[i] >= 0:
                codes[i] = _open(self._pool, name, size) if codes[i] == 0 else ALREADY_EXISTS
        return codes

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: AddressLists,
        all_sizes: SizeLists,
        all_dst_offsets: SizeLists,
    ) -> list[int]:
        """Writes parts of objects with a session: the bytes written of each, or a code."""
        names = texts(keys)
        columns = integer_lists(all_buffer_ptrs), integer_lists(all_sizes), integer_lists(all_dst_offsets)
        if self._pool is None or not same_length(names, *columns):
            return [INVALID_PARAMS] * len(names)
        return [
            _gather(self._pool.write_sessions.get(name), *parts)
            for name, *parts in zip(names, *columns, strict=True)
        ]

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Stores what was put together: 0 a key, or a code."""
        names = texts(keys)
        if self._pool is None:
            return [INVALID_PARAMS] * len(names)
        codes = []
        for name in names:
            value = self._pool.write_sessions.pop(name, None)
            if value is None:
                codes.append(INVALID_PARAMS)
                continue
            memory, keep = fragments_of([[value]], writable=False)
            codes += self._pool.put([name], memory, DEFAULT)
            del keep
        return codes

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """Forgets what was put together: 0 a key, -600 where there is no session."""
        names = texts(keys)
        sessions = {} if self._pool is None else self._pool.write_sessions
        return [INVALID_PARAMS if sessions.pop(name, None) is None else OK for name in names]


def _open(pool: Pool, name: str, size_bytes: int) -> int:
    with pool.lock:
        if name in pool.write_sessions:
            return ALREADY_EXISTS
        held = sum(map(len, pool.write_sessions.values()))
        if not name or size_bytes <= 0 or held + size_bytes > SESSION_BYTES_MAX:
            return INVALID_PARAMS
        pool.write_sessions[name] = bytearray(size_bytes)
        return OK


def _scatter(
    value: bytes | None, address: int, to: Sequence[int], source: Sequence[int], sizes: Sequence[int]
) -> list[int]:
    """Copies parts of a value to `address` + each of `to`: bytes copied, or a code, each."""
    if not same_length(to, source, sizes) or not address:
        return [INVALID_PARAMS] * len(sizes)
    if value is None:
        return [NOT_FOUND] * len(sizes)
    codes = []
    for offset, first, size in zip(to, source, sizes, strict=True):
        if min(offset, first) < 0 or size <= 0 or first + size > len(value):
            codes.append(INVALID_PARAMS)
            continue
        bytes_at(address + offset, size).data[:] = memoryview(value)[first : first + size]
        codes.append(size)
    return codes


def _gather(
    into: bytearray | None, addresses: Sequence[int], sizes: Sequence[int], offsets: Sequence[int]
) -> int:
    """Copies pieces of memory to their offsets in `into`: bytes copied, or a code. All or nothing."""
    if into is None or not same_length(addresses, sizes, offsets):
        return INVALID_PARAMS
    pieces = list(zip(addresses, sizes, offsets, strict=True))
    if any(not address or size <= 0 or at < 0 or at + size > len(into) for address, size, at in pieces):
        return INVALID_PARAMS
    for address, size, at in pieces:
        into[at : at + size] = bytes_at(address, size).data
    return sum(sizes)
