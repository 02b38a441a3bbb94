"""From key texts to rows. Keys in vLLM's form are ranks of one row a block; all others are plain objects.

The text names a model and no more: no weights, dtype, layout or number of ranks. Its keyspace can't be more exact
than that; `cache_prefix` and the tenant keep pools apart that would share by mistake.

Nor does the text say how many ranks there are. Eight tensor-parallel ranks share a row, and each further eight,
each pipeline stage and each context-parallel rank has a keyspace of its own: TP8 costs one row a block, and a
row has no column that TP1 wouldn't use except the seven of its own octet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from moonpool.schemas.errors import InvalidKey
from moonpool.schemas.keyspace import HASH_SIZES, KeyspaceSpec, Kind, object_hash, objects_keyspace
from moonpool.schemas.poolkey import PoolKey, parse_pool_key
from moonpool.store_client.objects import KEY_BYTES_MAX
from moonpool.store_client.rows import Rows

RANKS_A_ROW = 8
PREFIXES_MAX = 65536
"""Prefixes remembered: models x ranks x groups. Beyond them the memory starts anew."""

MODEL_CHARACTERS_MAX = 512
_FORM = "mooncake"
_DIGITS = {2 * size: size for size in HASH_SIZES}


class Place(NamedTuple):
    """Of one key."""

    keyspace: bytes
    rank: int
    block_hash: bytes


@dataclass(slots=True)
class Group:
    """Keys of one keyspace and rank: their rows, and their places in the caller's list."""

    keyspace: bytes
    rank: int
    hashes: list[bytes] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def rows(self) -> Rows:
        """As the client takes them."""
        return Rows(self.keyspace, self.rank, self.hashes, self.keys)


class KeyBook:
    """Remembers what each prefix means. Thread-safe: lost updates are made again."""

    def __init__(self, tenant: str, register: Callable[[KeyspaceSpec], bytes]) -> None:
        self._tenant = tenant
        self._register = register
        self._prefixes: dict[tuple[str, int], tuple[bytes, int] | None] = {}
        self.objects = objects_keyspace(tenant)
        self._objects = self.objects.digest()

    def place(self, key: str) -> Place:
        """Where the key's object belongs."""
        prefix, _, tail = key.rpartition("@")
        hash_bytes = _DIGITS.get(len(tail))
        if prefix and hash_bytes is not None:
            known = self._prefixes.get((prefix, hash_bytes), ())
            if known == ():
                known = self._learn(prefix, hash_bytes)
            block_hash = _from_hex(tail)
            if known and block_hash is not None:
                return Place(*known, block_hash)
        return Place(self._objects, 0, object_hash(key))

    def groups(self, keys: Sequence[str], index: Sequence[int]) -> list[Group]:
        """Those of the keys that `index` names, by keyspace and rank."""
        found: dict[tuple[bytes, int], Group] = {}
        for i in index:
            key = keys[i]
            keyspace, rank, block_hash = self.place(key)
            group = found.get((keyspace, rank))
            if group is None:
                group = found[keyspace, rank] = Group(keyspace, rank)
            group.hashes.append(block_hash)
            group.index.append(i)
            if keyspace is self._objects:
                group.keys.append(key)
        return list(found.values())

    def text(self, spec: KeyspaceSpec, rank: int, block_hash: bytes) -> str:
        """The key of a row that was stored under a key in vLLM's form. Empty where `spec` is of another kind."""
        facts = dict(spec.identity)
        if facts.get("form") != _FORM:
            return ""
        return PoolKey(
            model=spec.name,
            block_hash=block_hash,
            tp_rank=int(facts["tp_from"]) + rank,
            pcp_rank=int(facts["pcp"]),
            dcp_rank=int(facts["dcp"]),
            pp_rank=int(facts["pp"]),
            group=int(facts["group"]),
            rest=facts["rest"],
        ).text()

    def _learn(self, prefix: str, hash_bytes: int) -> tuple[bytes, int] | None:
        if len(self._prefixes) >= PREFIXES_MAX:
            self._prefixes.clear()
        known = self._namespace(prefix, hash_bytes)
        self._prefixes[prefix, hash_bytes] = known
        return known

    def _namespace(self, prefix: str, hash_bytes: int) -> tuple[bytes, int] | None:
        sample = f"{prefix}@{bytes(hash_bytes).hex()}"
        try:
            key = parse_pool_key(sample)
        except InvalidKey:
            return None
        if key.text() != sample or len(key.model) > MODEL_CHARACTERS_MAX:
            return None  # numbers with leading zeros, say: another key would have the same row
        octet, rank = divmod(key.tp_rank, RANKS_A_ROW)
        identity = {
            "dcp": str(key.dcp_rank),
            "form": _FORM,
            "group": str(key.group),
            "pcp": str(key.pcp_rank),
            "pp": str(key.pp_rank),
            "rest": key.rest,
            "tp_from": str(octet * RANKS_A_ROW),
        }
        spec = KeyspaceSpec(
            kind=Kind.FLAT,
            name=key.model,
            shard_bytes=(0,) * RANKS_A_ROW,
            hash_bytes=hash_bytes,
            tenant=self._tenant,
            identity=tuple(sorted(identity.items())),
        )
        return self._register(spec), rank


def _from_hex(text: str) -> bytes | None:
    """The hash, where these are lower-case digits and nothing else."""
    try:
        block_hash = bytes.fromhex(text)
    except ValueError:
        return None
    return block_hash if block_hash.hex() == text else None


def usable(key: str) -> bool:
    """Whether an object may have this key."""
    try:
        return 0 < len(key.encode()) <= KEY_BYTES_MAX
    except UnicodeEncodeError:
        return False
