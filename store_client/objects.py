"""Names of plain objects: key texts of any form are rows of the tenant's objects keyspace."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.schemas.errors import InvalidKey
from moonpool.schemas.packed import PackedHashes, split_hashes
from moonpool.store_client.native import KEY_HASH_BYTES, hash_keys
from moonpool.store_client.rows import Rows

KEY_BYTES_MAX = 4096


def rows_of(keyspace: bytes, keys: Sequence[str]) -> Rows:
    """The rows of key texts, which puts store beside the bytes. Raises InvalidKey."""
    return Rows(keyspace, 0, PackedHashes(_packed(keys), KEY_HASH_BYTES), keys)


def hashes_of(keys: Sequence[str]) -> list[bytes]:
    """Row names of key texts. Raises InvalidKey."""
    return split_hashes(_packed(keys), KEY_HASH_BYTES)


def _packed(keys: Sequence[str]) -> bytes:
    packed = hash_keys(keys, KEY_BYTES_MAX)
    if isinstance(packed, int):
        raise InvalidKey(
            key=ascii(keys[packed])[:200], allowed=f"text of 1 to {KEY_BYTES_MAX} bytes of UTF-8"
        )
    return packed
