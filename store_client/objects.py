"""Names of plain objects: key texts of any form are rows of the tenant's objects keyspace."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.schemas.errors import InvalidKey
from moonpool.schemas.keyspace import object_hash
from moonpool.store_client.rows import Rows

KEY_BYTES_MAX = 4096


def rows_of(keyspace: bytes, keys: Sequence[str]) -> Rows:
    """The rows of key texts, which puts store beside the bytes. Raises InvalidKey."""
    return Rows(keyspace, 0, hashes_of(keys), keys)


def hashes_of(keys: Sequence[str]) -> list[bytes]:
    """Row names of key texts. Raises InvalidKey."""
    for key in keys:
        try:
            size_bytes = len(key.encode())
        except (AttributeError, UnicodeEncodeError):
            size_bytes = 0
        if not 0 < size_bytes <= KEY_BYTES_MAX:
            raise InvalidKey(key=ascii(key)[:200], allowed=f"text of 1 to {KEY_BYTES_MAX} bytes of UTF-8")
    return [object_hash(key) for key in keys]
