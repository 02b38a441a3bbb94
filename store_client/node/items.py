"""From a BeginItem to the headers of its blocks. Everything that came over a socket is checked here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import HEADER_DTYPE, Headers, keyspace_word
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import BeginItem
from moonpool.schemas.packed import U64, count_of, u64s
from moonpool.schemas.runs import SHARDS_MAX
from moonpool.store_client.node.headers import fill_hashes
from moonpool.store_client.node.layout import PAGE_BYTES_MAX, class_slot_bytes, fixed_slot_bytes

BLOCKS_MAX = 8192
"""Blocks of one Begin."""

KEY_BYTES_MAX = 4096
_POSITION_MAX = (1 << 32) - BLOCKS_MAX


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Headers without word, session and put id; `slot_bytes` may be larger than a page; `keys` as UTF-8."""

    headers: Headers
    slot_bytes: U64
    keys: list[bytes]


def check_item(item: BeginItem, spec: KeyspaceSpec, shards: int = SHARDS_MAX) -> tuple[int, list[bytes]]:
    """Checks an item against its keyspace, and its shard against how many there are; its lengths are left unread.
    Returns how many blocks it has, and their keys. Raises InvalidParams."""
    count, rest = divmod(len(item.hashes), spec.hash_bytes)
    keys = list(map(str.encode, item.keys))
    good = (
        not rest
        and 0 < count <= BLOCKS_MAX
        and 0 <= item.rank < len(spec.shard_bytes)
        and 0 <= item.position <= _POSITION_MAX
        and 0 <= item.shard < shards
        and len(item.parent) in (0, spec.hash_bytes)
        and (
            not keys
            or (len(keys) == count and not spec.shard_bytes[0] and max(map(len, keys)) <= KEY_BYTES_MAX)
        )
    )
    if not good:  # asked one by one for the error: a put of one object would spend its time on saying yes
        _check_all(item, spec, shards, keys)
    return count, keys


def _check_all(item: BeginItem, spec: KeyspaceSpec, shards: int, keys: list[bytes]) -> None:
    count = count_of(item.hashes, spec.hash_bytes, "hashes")
    _check(0 < count <= BLOCKS_MAX, "hashes", count, f"1 to {BLOCKS_MAX} blocks")
    _check(0 <= item.rank < spec.world, "rank", item.rank, f"0 to {spec.world - 1}")
    _check(0 <= item.position <= _POSITION_MAX, "position", item.position, f"0 to {_POSITION_MAX}")
    _check(0 <= item.shard < shards, "shard", item.shard, f"0 to {shards - 1}")
    parents = (0, spec.hash_bytes)
    _check(len(item.parent) in parents, "parent", f"{len(item.parent)} bytes", f"{parents} bytes")
    _check(len(keys) in (0, count), "keys", len(keys), f"none, or one for each of {count} blocks")
    _check(not keys or spec.variable_size, "keys", len(keys), "none where the keyspace fixes the size")
    longest = max(map(len, keys), default=0)
    _check(longest <= KEY_BYTES_MAX, "keys", f"{longest} bytes", f"{KEY_BYTES_MAX} bytes")


def prepare(item: BeginItem, spec: KeyspaceSpec, shards: int = SHARDS_MAX) -> Prepared:
    """Raises InvalidParams, as check_item does."""
    count, keys = check_item(item, spec, shards)
    lengths = _lengths(item, spec, count)
    headers = np.zeros(count, dtype=HEADER_DTYPE)
    headers["keyspace"] = keyspace_word(item.keyspace)
    headers["rank"] = item.rank
    headers["hash_bytes"] = spec.hash_bytes
    headers["length"] = lengths
    headers["shard"] = item.shard
    fill_hashes(headers, "block_hash", item.hashes, spec.hash_bytes)
    if spec.kind is Kind.CHAINED:
        headers["position"] = item.position + np.arange(count, dtype=np.uint32)
        parent = item.parent or bytes(spec.hash_bytes)
        fill_hashes(headers, "parent_hash", parent + item.hashes[: -spec.hash_bytes], spec.hash_bytes)
    else:
        headers["position"] = item.position
    if keys:
        headers["key_bytes"] = [len(key) for key in keys]
    if spec.variable_size:
        slot_bytes = class_slot_bytes(lengths + headers["key_bytes"].astype(np.uint64))
    else:
        slot_bytes = np.full(count, fixed_slot_bytes(spec.shard_bytes[item.rank]), dtype=np.uint64)
    return Prepared(headers, slot_bytes, keys)


def check_lengths(item: BeginItem, count: int) -> None:
    """Whether there is one a block. Raises InvalidParams."""
    if len(item.lengths) != 8 * count:
        _check(False, "lengths", f"{len(item.lengths)} bytes", f"{8 * count} bytes")


def _lengths(item: BeginItem, spec: KeyspaceSpec, count: int) -> U64:
    """Payload bytes of each block. Lengths past any page are cut there, so that no sum overflows."""
    if item.lengths:
        check_lengths(item, count)
        given = u64s(item.lengths)
        if spec.variable_size:
            return np.minimum(given, np.uint64(2 * PAGE_BYTES_MAX))
        fixed = spec.shard_bytes[item.rank]
        _check(bool((given == fixed).all()), "lengths", "another size", f"{fixed} bytes a block")
        return given
    _check(not spec.variable_size, "lengths", "missing", "one for each object of this keyspace")
    return np.full(count, spec.shard_bytes[item.rank], dtype=np.uint64)


def _check(holds: bool, field: str, value: object, allowed: str) -> None:
    if not holds:
        raise InvalidParams(field=f"begin.{field}", value=value, allowed=allowed)
