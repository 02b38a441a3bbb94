"""What the pool holds, by name: asked of the nodes, who have the key texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from moonpool.schemas.errors import DeadlineExceeded, InvalidParams, KeyspaceUnknown, ProtocolError
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import Hello, KeyList, ListKeys, NodeInfo, decode_from_node
from moonpool.schemas.packed import split_hashes, u16s
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials

PIECES_MAX = 1 << 20
"""Of one node: more is a node that never says it is done."""

PIECE_TIMEOUT_S = 5.0
"""However long the whole may take: a node that says nothing for so long isn't listing."""


class Listed(NamedTuple):
    """A stored object. `key`: empty where no text was stored with it."""

    block_hash: bytes
    rank: int
    key: str


class ListingPage(NamedTuple):
    """(node, object) pairs. `after`: says where the next page begins; empty at the end."""

    found: list[tuple[str, Listed]]
    after: str


class _Place(NamedTuple):
    """Where a page begins: a piece of one segment, and how many objects of it were on the page before."""

    segment: bytes = b""
    cursor: int = 0
    seen: int = 0

    def text(self) -> str:
        return f"{self.segment.hex()}.{self.cursor}.{self.seen}"

    @staticmethod
    def parse(text: str) -> _Place:
        """Raises InvalidParams."""
        try:
            segment, cursor, seen = text.split(".")
            return _Place(bytes.fromhex(segment), int(cursor), int(seen))
        except ValueError:
            raise InvalidParams(field="after", value=text, allowed="what the page before it named") from None


def list_keyspace(
    nodes: Sequence[NodeInfo],
    hello: Hello,
    keyspace: bytes,
    hash_bytes: int,
    deadline_s: float,
    credentials: Credentials = NO_CREDENTIALS,
) -> Iterator[Listed]:
    """Everything that these nodes hold of a keyspace. Raises Unreachable where one can't be asked."""
    for info in nodes:
        for _, piece in _pieces(info, hello, credentials, keyspace, hash_bytes, 0, deadline_s):
            yield from piece


def list_page(
    nodes: Sequence[NodeInfo],
    hello: Hello,
    spec: KeyspaceSpec,
    after: str,
    limit: int,
    keep: Callable[[Listed], bool],
    deadline_s: float,
    credentials: Credentials = NO_CREDENTIALS,
) -> ListingPage:
    """Up to `limit` objects that `keep` wants, node by node. Raises InvalidParams, and Unreachable where a node can't
    be asked. What moves between two pages may be on both, or on neither."""
    if limit < 1:
        raise InvalidParams(field="limit", value=limit, allowed="1 or more")
    start = _Place.parse(after) if after else _Place()
    found: list[tuple[str, Listed]] = []
    for info in sorted(nodes, key=lambda node: node.segment):
        if info.segment < start.segment:
            continue
        place = start if info.segment == start.segment else _Place(info.segment)
        seen = place.seen
        pieces = _pieces(info, hello, credentials, spec.digest(), spec.hash_bytes, place.cursor, deadline_s)
        with closing(pieces):
            for cursor, piece in pieces:
                for number, listed in enumerate(piece[seen:], seen):
                    if not keep(listed):
                        continue
                    if len(found) == limit:
                        return ListingPage(found, _Place(info.segment, cursor, number).text())
                    found.append((info.node, listed))
                seen = 0
    return ListingPage(found, "")


def _pieces(
    info: NodeInfo,
    hello: Hello,
    credentials: Credentials,
    keyspace: bytes,
    hash_bytes: int,
    cursor: int,
    deadline_s: float,
) -> Generator[tuple[int, list[Listed]], None, None]:
    """(cursor, objects) of each piece of one node, from a cursor on."""
    connection = RpcConnection(info.rpc_address, hello, decode_from_node, credentials)
    try:
        for _ in range(PIECES_MAX):
            piece_s = min(deadline_s, time.monotonic() + PIECE_TIMEOUT_S)
            piece = connection.call(ListKeys(keyspace, cursor), piece_s)
            if not isinstance(piece, KeyList):
                raise ProtocolError(
                    peer=connection.address, reason=f"{type(piece).__name__} in answer to ListKeys"
                )
            columns = (split_hashes(piece.hashes, hash_bytes), u16s(piece.ranks).tolist(), piece.keys)
            yield cursor, [Listed(*row) for row in zip(*columns, strict=True)]
            cursor = piece.cursor
            if cursor < 0:
                return
        raise DeadlineExceeded(peer=connection.address, what="ListKeys", timeout_s=0.0)
    except KeyspaceUnknown:  # nothing of it was ever stored there
        return
    finally:
        connection.close()
