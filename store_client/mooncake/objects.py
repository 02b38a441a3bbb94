"""Values as bytes: put, get, upsert, exist, and their batches."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.schemas.errors import InvalidParams
from moonpool.store_client.buffers import Buffer, Memory, fragments_of
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.mooncake.calls import Calls, text, texts
from moonpool.store_client.mooncake.codes import INVALID_PARAMS, OK
from moonpool.store_client.mooncake.config import DEFAULT, ReplicateConfig
from moonpool.store_client.mooncake.handles import BufferHandle


class ObjectCalls(Calls):
    """Values that Python holds."""

    def put(self, key: str, value: Buffer, config: ReplicateConfig = DEFAULT) -> int:
        """Stores one object. 0 also where the key is taken: the old value stays."""
        return self._put([text(key)], [[value]], config, replace=False)

    def put_parts(self, key: str, *parts: Buffer, config: ReplicateConfig = DEFAULT) -> int:
        """Stores the parts, one behind the other, as one object."""
        return self._put([text(key)], [list(parts)], config, replace=False)

    def put_batch(
        self, keys: Sequence[str], values: Sequence[Buffer], config: ReplicateConfig = DEFAULT
    ) -> int:
        """Stores objects. 0, or the first code that isn't."""
        return self._put(texts(keys), [[value] for value in values], config, replace=False)

    def upsert(self, key: str, value: Buffer, config: ReplicateConfig = DEFAULT) -> int:
        """Stores one object in the place of what the key had."""
        return self._put([text(key)], [[value]], config, replace=True)

    def upsert_parts(self, key: str, *parts: Buffer, config: ReplicateConfig = DEFAULT) -> int:
        """As put_parts, in the place of what the key had."""
        return self._put([text(key)], [list(parts)], config, replace=True)

    def upsert_batch(
        self, keys: Sequence[str], values: Sequence[Buffer], config: ReplicateConfig = DEFAULT
    ) -> int:
        """As put_batch, in the place of what the keys had."""
        return self._put(texts(keys), [[value] for value in values], config, replace=True)

    def get(self, key: str) -> bytes:
        """The value; b"" where it isn't there or couldn't be read."""
        return self.get_batch([text(key)])[0]

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """Values; b"" where one isn't there or couldn't be read."""
        names = texts(keys)
        if self._pool is None:
            return [b""] * len(names)
        return [value or b"" for value in self._pool.get(names)]

    def get_buffer(self, key: str) -> BufferHandle | None:
        """The value as memory, None where it isn't there or couldn't be read."""
        return self.batch_get_buffer([text(key)])[0]

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """Values as memory."""
        names = texts(keys)
        if self._pool is None:
            return [None] * len(names)
        return [None if value is None else BufferHandle.of(value) for value in self._pool.get(names)]

    def is_exist(self, key: str) -> int:
        """1 or 0, or a negative code. A hit is leased for some seconds; the lease yields to a put in need."""
        return self.batch_is_exist([text(key)])[0]

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """The same of many keys."""
        names = texts(keys)
        return [INVALID_PARAMS] * len(names) if self._pool is None else self._pool.exist(names)

    def get_size(self, key: str) -> int:
        """Bytes of an object, or a code."""
        names = [text(key)]
        return INVALID_PARAMS if self._pool is None else self._pool.sizes(names)[0]

    def _put(
        self, keys: list[str], values: list[list[Buffer]], config: ReplicateConfig, *, replace: bool
    ) -> int:
        parts, keep = _fragments(values)
        if self._pool is None or len(keys) != len(values):
            return INVALID_PARAMS
        if not all(part.size_bytes for part in keep) and not (parts.lengths() > 0).all():
            return INVALID_PARAMS  # one empty value refuses the whole batch
        codes = (self._pool.upsert if replace else self._pool.put)(keys, parts, config)
        del keep
        return next((code for code in codes if code != OK), OK)


def _fragments(values: list[list[Buffer]]) -> tuple[Fragments, list[Memory]]:
    """Whatever has the buffer protocol; a view with gaps is copied. Raises TypeError for anything else."""
    try:
        return fragments_of([[_packed(part) for part in parts] for parts in values], writable=False)
    except InvalidParams as error:
        raise TypeError(str(error)) from error


def _packed(value: Buffer) -> Buffer:
    if isinstance(value, tuple):
        raise TypeError("value is tuple; allowed: anything with the buffer protocol")
    if isinstance(value, memoryview) and not value.c_contiguous:
        return value.tobytes()
    return value
