"""Redis: what a general store of bytes does with the same objects."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from moonpool.benchmarks.subjects.base import Pieces


class RedisSubject:
    """One connection over tcp. Values are gathered and scattered in Python, as its clients have to."""

    def __init__(self, *, port: int) -> None:
        import redis

        self._redis: Any = redis.Redis(port=port)

    def register(self, address: int, size_bytes: int) -> None:
        """See Subject."""

    def put(self, keys: Sequence[str], pieces: Pieces) -> int:
        """See Subject."""
        values = [
            b"".join(map(ctypes.string_at, addresses, sizes))
            for addresses, sizes in zip(*pieces, strict=True)
        ]
        return len(keys) if self._redis.mset(dict(zip(keys, values, strict=True))) else 0

    def get(self, keys: Sequence[str], pieces: Pieces) -> int:
        """See Subject."""
        found = 0
        values = self._redis.mget(keys)
        for value, addresses, sizes in zip(values, *pieces, strict=True):
            at = 0
            for address, size in zip(addresses, sizes, strict=True):
                ctypes.memmove(address, value[at : at + size], size)
                at += size
            found += at == len(value)
        return found

    def exist(self, keys: Sequence[str]) -> int:
        """See Subject. Redis counts; it can't say which in one command."""
        return int(self._redis.exists(*keys))

    def remove(self, keys: Sequence[str]) -> None:
        """See Subject."""
        self._redis.delete(*keys)

    def close(self) -> None:
        """See Subject."""
        self._redis.close()
