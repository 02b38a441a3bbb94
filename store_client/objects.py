"""Names of plain objects: key texts of any form are rows of the tenant's objects keyspace."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.schemas.errors import InvalidKey
from moonpool.schemas.packed import PackedHashes
from moonpool.store_client.native import KEY_HASH_BYTES, hash_keys
from moonpool.store_client.rows import Rows

KEY_BYTES_MAX = 4096


def rows_of(keyspace: bytes, keys: Sequence[str]) -> Rows:
    """The rows of key texts, which puts store beside the bytes. Raises InvalidKey."""
    packed = hash_keys(keys, KEY_BYTES_MAX)
    if isinstance(packed, int):
        raise _not_a_key(keys[packed])
    return Rows(keyspace, 0, PackedHashes(packed, KEY_HASH_BYTES), keys)


def hashes_of(keys: Sequence[str]) -> list[bytes]:
    """Row names of key texts. Raises InvalidKey."""
    return list(rows_of(b"", keys).hashes)


def _not_a_key(key: object) -> InvalidKey:
    return InvalidKey(key=ascii(key)[:200], allowed=f"text of 1 to {KEY_BYTES_MAX} bytes of UTF-8")
