"""The text of a stored object that a node listed: what `ls` prints and other commands take."""

from __future__ import annotations

from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.store_client.cli.keys import short_key
from moonpool.store_client.listing import Listed
from moonpool.store_client.mooncake.keys import KeyBook


def key_text(spec: KeyspaceSpec, keyspace: bytes, listed: Listed) -> str:
    """The key that it was stored with, the one that Mooncake's clients know it by, or HASH#KEYSPACE."""
    if listed.key:
        return listed.key
    book = KeyBook(spec.tenant, KeyspaceSpec.digest)
    return book.text(spec, listed.rank, listed.block_hash) or short_key(listed.block_hash, keyspace)
