"""The few loops that hold back everything else: in C where the build had a compiler (hot.c), else here in Python.

Both do the same, and the same tests ask both. `HOT` says which one runs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from moonpool.schemas.packed import I64, U64

try:
    from moonpool.store_client import _hot
except ImportError:
    HOT = False
else:
    HOT = os.environ.get("MOONPOOL_NATIVE", "1") != "0"

KEY_HASH_BYTES = 16

COPY_THREADS = min(4, os.cpu_count() or 1)
"""Of one large copy. Two cores reach the memory's speed together, and get a busy machine's time twice as often."""


def hash_keys(keys: Sequence[str], bytes_max: int) -> bytes | int:
    """Packed row names of key texts (schemas/keyspace.py: object_hash); where one isn't text of 1 to `bytes_max`
    bytes of UTF-8, the index of the first such key instead."""
    if HOT:
        return _hot.hash_keys(keys if isinstance(keys, list) else list(keys), bytes_max)
    return python_hash_keys(keys, bytes_max)


def find_rows(parts: list[dict[bytes, int]], packed: bytes, hash_bytes: int) -> I64:
    """What parts[first byte of the hash % number of parts] says of each packed hash; -1 where nothing."""
    if HOT:
        rows: I64 = np.empty(len(packed) // hash_bytes, dtype=np.int64)
        _hot.find_rows(parts, packed, hash_bytes, rows)
        return rows
    return python_find_rows(parts, packed, hash_bytes)


def flatten(lists: Sequence[Sequence[Any]]) -> U64 | None:
    """All values of lists of integers as one column; None where some are something else, or no u64."""
    if HOT:
        packed = _hot.flatten(lists)
        return None if packed is None else np.frombuffer(packed, dtype=np.uint64)
    return python_flatten(lists)


def copy_pieces(to: U64, source: U64, sizes: U64) -> None:
    """Copies memory, piece by piece; without the interpreter lock, and in several threads, where it is much. Only
    where HOT."""
    columns = (np.ascontiguousarray(to), np.ascontiguousarray(source), np.ascontiguousarray(sizes))
    _hot.copy_pieces(*columns, COPY_THREADS)


def python_hash_keys(keys: Sequence[str], bytes_max: int) -> bytes | int:
    """hash_keys without C."""
    sha256 = hashlib.sha256
    digests = []
    for index, key in enumerate(keys):
        try:
            text = key.encode()
        except (AttributeError, UnicodeEncodeError):
            return index
        if not 0 < len(text) <= bytes_max:
            return index
        digests.append(sha256(text).digest()[:KEY_HASH_BYTES])
    return b"".join(digests)


def python_flatten(lists: Sequence[Sequence[Any]]) -> U64 | None:
    """flatten without C."""
    values = list(chain.from_iterable(lists))
    if not set(map(type, values)) <= {int}:
        return None
    try:
        return np.array(values, dtype=np.uint64)
    except OverflowError:
        return None


def python_find_rows(parts: list[dict[bytes, int]], packed: bytes, hash_bytes: int) -> I64:
    """find_rows without C."""
    hashes = [packed[at : at + hash_bytes] for at in range(0, len(packed), hash_bytes)]
    count = len(parts)
    return np.array([parts[h[0] % count].get(h, -1) for h in hashes], dtype=np.int64)
