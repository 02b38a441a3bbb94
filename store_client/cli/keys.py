"""What a KEY on the command line names.

HASH#KEYSPACE                   a block; of the keyspace's digest the first digits will do, as `moonpool ls` prints them
model@...@HASH#KEYSPACE         one rank's shard of a block
model@...@HASH                  the same as Mooncake spells it: looked for in every keyspace of that model
anything else                   a plain object

Any text may be the key of a plain object, so that is always looked for as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from moonpool.schemas.errors import InvalidKey, InvalidParams, NotFound
from moonpool.schemas.keyspace import KeyspaceSpec, objects_keyspace
from moonpool.schemas.messages import Description
from moonpool.schemas.poolkey import PoolKey, parse_pool_key
from moonpool.store_client import StoreClient
from moonpool.store_client.mooncake.keys import KeyBook
from moonpool.store_client.objects import hashes_of

DIGITS = 12
"""Of a keyspace's digest, where it is shown to people."""

_SHORT = re.compile(r"(?P<hash>(?:[0-9a-f]{32}){1,2})#(?P<keyspace>[0-9a-f]{4,32})")


@dataclass(frozen=True, slots=True)
class Place:
    """A row. `rank`: -1 where the key names no rank."""

    spec: KeyspaceSpec
    keyspace: bytes
    block_hash: bytes
    rank: int = -1

    def text(self) -> str:
        """As it is printed, and understood again."""
        return short_key(self.block_hash, self.keyspace)


def short_key(block_hash: bytes, keyspace: bytes) -> str:
    """HASH#KEYSPACE with a digest's first digits."""
    return f"{block_hash.hex()}#{keyspace.hex()[:DIGITS]}"


def find(client: StoreClient, key: str) -> tuple[Place, Description]:
    """The one row that the key names, and what is known of it. Raises NotFound, and InvalidKey where there are several."""
    found: list[tuple[Place, Description]] = []
    for place in _candidates(client, key):
        try:
            found.append((place, client.describe(place.keyspace, place.block_hash)))
        except NotFound:
            continue
    if not found:
        raise NotFound(key=repr(key))
    if len(found) > 1:
        names = ", ".join(place.text() for place, _ in found)
        raise InvalidKey(key=key, allowed=f"one of those that it names: {names}")
    return found[0]


def find_keyspace(client: StoreClient, digits: str) -> KeyspaceSpec:
    """The keyspace whose digest begins so. Raises InvalidParams."""
    specs = client.list_keyspaces()
    found = [spec for spec in specs if digits and spec.digest().hex().startswith(digits.lower())]
    if len(found) == 1:
        return found[0]
    problem = "more digits: several begin so" if found else "a digest that `moonpool ls keyspaces` lists"
    raise InvalidParams(field="keyspace", value=digits, allowed=problem)


def _candidates(client: StoreClient, key: str) -> Iterator[Place]:
    tenant = client.settings.tenant
    known = {spec.digest(): spec for spec in client.list_keyspaces()}
    objects = objects_keyspace(tenant)
    (name,) = hashes_of([key])  # refuses what can't be a key at all
    if objects.digest() in known:
        yield Place(objects, objects.digest(), name)
    short = _SHORT.fullmatch(key)
    if short:
        for digest, spec in known.items():
            block_hash = bytes.fromhex(short["hash"])
            if digest.hex().startswith(short["keyspace"]) and len(block_hash) == spec.hash_bytes:
                yield Place(spec, digest, block_hash)
        return
    try:
        pool_key = parse_pool_key(key)
    except InvalidKey:
        return
    yield from _of_pool_key(known, pool_key)
    if pool_key.keyspace is None:
        place = KeyBook(tenant, KeyspaceSpec.digest).place(key)
        if place.keyspace in known and place.keyspace != objects.digest():
            yield Place(known[place.keyspace], place.keyspace, place.block_hash, place.rank)


def _of_pool_key(known: dict[bytes, KeyspaceSpec], key: PoolKey) -> Iterator[Place]:
    """Blocks that engines saved: the text's model and group may stand for several identities."""
    for digest, spec in known.items():
        named = digest == key.keyspace if key.keyspace is not None else spec.name == key.model
        mooncake = dict(spec.identity).get("form") is not None
        if named and len(key.block_hash) == spec.hash_bytes and not mooncake:
            yield Place(spec, digest, key.block_hash, key.tp_rank if key.tp_rank < spec.world else -1)
