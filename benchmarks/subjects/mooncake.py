"""Mooncake Store, through the library of its wheel. Must be imported after the environment is set: see servers.py."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.benchmarks.subjects.base import Pieces

BUFFER_BYTES = 16 << 20


class MooncakeSubject:
    """`segment_bytes`: contributed by this very process, the best that Mooncake can do on one host; 0: objects lie
    with somebody else."""

    def __init__(self, *, master: str, segment_bytes: int) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._store = MooncakeDistributedStore()
        code = self._store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, BUFFER_BYTES, "tcp", "", master)
        if code:
            raise RuntimeError(f"Mooncake's setup answers {code}")

    def register(self, address: int, size_bytes: int) -> None:
        """See Subject."""
        self._store.register_buffer(address, size_bytes)

    def put(self, keys: Sequence[str], pieces: Pieces) -> int:
        """See Subject."""
        addresses, sizes = pieces
        if len(addresses[0]) == 1:
            codes = self._store.batch_put_from(keys, [a[0] for a in addresses], [s[0] for s in sizes])
        else:
            codes = self._store.batch_put_from_multi_buffers(keys, addresses, sizes)
        return sum(code == 0 for code in codes)

    def get(self, keys: Sequence[str], pieces: Pieces) -> int:
        """See Subject."""
        addresses, sizes = pieces
        if len(addresses[0]) == 1:
            codes = self._store.batch_get_into(keys, [a[0] for a in addresses], [s[0] for s in sizes])
        else:
            codes = self._store.batch_get_into_multi_buffers(keys, addresses, sizes)
        return sum(code > 0 for code in codes)

    def exist(self, keys: Sequence[str]) -> int:
        """See Subject."""
        return sum(code == 1 for code in self._store.batch_is_exist(keys))

    def remove(self, keys: Sequence[str]) -> None:
        """See Subject."""
        self._store.batch_remove(keys, True)

    def close(self) -> None:
        """See Subject."""
        self._store.close()
