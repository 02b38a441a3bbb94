"""What the pool holds, by name: asked of the nodes, who have the key texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from moonpool.schemas.errors import DeadlineExceeded, KeyspaceUnknown, ProtocolError
from moonpool.schemas.messages import Hello, KeyList, ListKeys, NodeInfo, decode_from_node
from moonpool.schemas.packed import split_hashes, u16s
from moonpool.store_client.rpc.connection import RpcConnection

PIECES_MAX = 1 << 20
"""Of one node: more is a node that never says it is done."""


class Listed(NamedTuple):
    """A stored object. `key`: empty where no text was stored with it."""

    block_hash: bytes
    rank: int
    key: str


def list_keyspace(
    nodes: Sequence[NodeInfo], hello: Hello, keyspace: bytes, hash_bytes: int, deadline_s: float
) -> Iterator[Listed]:
    """Everything that these nodes hold of a keyspace. Raises Unreachable where one can't be asked."""
    for info in nodes:
        connection = RpcConnection(info.rpc_address, hello, decode_from_node)
        try:
            yield from _list_node(connection, keyspace, hash_bytes, deadline_s)
        except KeyspaceUnknown:  # nothing of it was ever stored there
            continue
        finally:
            connection.close()


def _list_node(
    connection: RpcConnection, keyspace: bytes, hash_bytes: int, deadline_s: float
) -> Iterator[Listed]:
    cursor = 0
    for _ in range(PIECES_MAX):
        piece = connection.call(ListKeys(keyspace, cursor), deadline_s)
        if not isinstance(piece, KeyList):
            raise ProtocolError(
                peer=connection.address, reason=f"{type(piece).__name__} in answer to ListKeys"
            )
        hashes = split_hashes(piece.hashes, hash_bytes)
        for block_hash, rank, key in zip(hashes, u16s(piece.ranks).tolist(), piece.keys, strict=True):
            yield Listed(block_hash, rank, key)
        cursor = piece.cursor
        if cursor < 0:
            return
    raise DeadlineExceeded(peer=connection.address, what="ListKeys", timeout_s=0.0)
