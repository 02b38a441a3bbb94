"""Rows of the index as documents. All of it runs in the master's event loop."""

from __future__ import annotations

import math

from pydantic import BaseModel, Field

from moonpool.master.columns import NO_ROW
from moonpool.master.copies import Place
from moonpool.master.rest.paging import PLACE
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.row_cursor import cursor_of
from moonpool.master.table import Table
from moonpool.schemas.access import Identity
from moonpool.schemas.errors import InvalidKey, KeyspaceUnknown, MoonpoolError, NotFound
from moonpool.schemas.keyspace import DIGEST_BYTES
from moonpool.schemas.poolkey import parse_pool_key
from moonpool.schemas.runs import run_end

SHORT_FORM = "<keyspace>/<hash>, both in hex, or a PoolKey's text"
KEY_PATTERN = (
    r"^([0-9a-f]{32}/([0-9a-f]{32}|[0-9a-f]{64})"
    r"|[^@\n]+@tp_rank:\d{1,5}@pcp\d{1,5}@dcp\d{1,5}@pp_rank:\d{1,5}@group:\d{1,5}@([0-9a-f]{2}){1,32}(#[0-9a-f]{32})?)$"
)
"""Of both forms, for the OpenAPI; other parts that a PoolKey's text may have are left out."""


class CopyDocument(BaseModel):
    """One rank's place."""

    rank: int = Field(examples=[0])
    node: str = Field(examples=["node"])
    segment: str = Field(examples=["0f" * 16])
    slot: int = Field(examples=[65537])
    generation: int = Field(examples=[17])
    length: int = Field(description="payload bytes", examples=[131072])


class Block(BaseModel):
    """One block of the index."""

    key: str = Field(
        description="names it in requests: keyspace and hash", examples=["00" * 16 + "/" + "ab" * 32]
    )
    keyspace: str = Field(examples=["00" * 16])
    tenant: str = Field(examples=["default"])
    model: str = Field(description="name of the keyspace", examples=["Qwen/Qwen3-0.6B"])
    hash: str = Field(examples=["ab" * 32])
    shard: int = Field(description="of the index", examples=[0])
    cursor: str = Field(
        description="where it stands in lists of blocks: a page asked for with it begins behind this block",
        examples=[PLACE],
    )
    position: int = Field(description="in its chain, in blocks", examples=[7])
    parent: str | None = Field(
        description="hash before it in its run; null: none is known", examples=["cd" * 32]
    )
    children: int = Field(description="blocks that hang on it directly, in its run", examples=[2])
    run_ends: bool = Field(
        description="whether the next block begins another run, which isn't linked to this one",
        examples=[False],
    )
    ready: bool = Field(description="whether it and all before it in its run are whole", examples=[True])
    ranks: int = Field(description="distinct shards of a block", examples=[8])
    ranks_there: int = Field(examples=[8])
    copies: list[CopyDocument] = Field(description="where each rank's shard lies, once or more")
    lease_ms: int = Field(description="what is left of its own lease", examples=[2500])
    pinned: bool = Field(examples=[False])
    pin_ms: int | None = Field(
        description="what is left of its pin; null: no end, or no pin", examples=[None]
    )
    age_ms: int = Field(description="since its last use", examples=[120])
    uses: int = Field(description="up to 15", examples=[3])


def parse_key(text: str) -> tuple[str | None, bytes | None, bytes]:
    """(model, keyspace, hash) that a key names. Raises InvalidKey."""
    keyspace, slash, block_hash = text.partition("/")
    if slash and "@" not in text:
        try:
            named = bytes.fromhex(keyspace), bytes.fromhex(block_hash)
        except ValueError:
            raise InvalidKey(key=text[:200], allowed=SHORT_FORM) from None
        if len(named[0]) != DIGEST_BYTES or len(named[1]) not in (16, 32):
            raise InvalidKey(key=text[:200], allowed=SHORT_FORM)
        return None, *named
    key = parse_pool_key(text)
    return key.model, key.keyspace, key.block_hash


def find(parts: MasterParts, identity: Identity, text: str) -> tuple[int, Table, int]:
    """(shard, table, row) of a key. One without a keyspace may be of any keyspace of that name. Raises InvalidKey,
    NotFound."""
    model, keyspace, block_hash = parse_key(text)
    for shard, table in parts.core.look.tables():
        fits = table.keyspace == keyspace if keyspace is not None else table.spec.name == model
        if fits and identity.sees(table.spec.tenant) and block_hash:
            row = table.rows.get(block_hash)
            if row != NO_ROW:
                return shard, table, row
    raise NotFound(key=text[:200])


def tables_of(parts: MasterParts, identity: Identity, keyspace: str) -> list[tuple[int, Table]]:
    """A keyspace's table in each shard. Raises KeyspaceUnknown, also where it is none of the asker's business."""
    found = [
        (shard, table)
        for shard, table in parts.core.look.tables()
        if table.keyspace.hex() == keyspace and identity.sees(table.spec.tenant)
    ]
    if not found:
        raise KeyspaceUnknown(keyspace=keyspace[:64])
    return found


def describe(parts: MasterParts, shard: int, table: Table, row: int) -> Block:
    """Everything known of one row."""
    now_s = parts.clock.now_s()
    spec, block_hash, position = table.spec, table.hashes[row], table.position_of(row)
    pin_s = table.pins.until_s(row) - now_s if row in table.pins else math.inf
    lease_s = max(table.leased_until_s[row], table.soft_until_s(row)) - now_s
    ranks = list(table.ranks_of(row))
    copies = [copy_of(parts, rank, place) for rank in ranks for place in table.places(row, rank)]
    return Block(
        key=f"{table.keyspace.hex()}/{block_hash.hex()}",
        keyspace=table.keyspace.hex(),
        tenant=spec.tenant,
        model=spec.name,
        hash=block_hash.hex(),
        shard=shard,
        cursor=cursor_of(parts, shard, table, row),
        position=position,
        parent=table.parent_of(row).hex() or None,
        children=table.children_of(row),
        run_ends=position + 1 == run_end(position),
        ready=bool(table.ready[row]),
        ranks=table.world,
        ranks_there=len(ranks),
        copies=copies,
        lease_ms=max(0, round(lease_s * 1000)),
        pinned=row in table.pins,
        pin_ms=None if pin_s == math.inf else max(0, round(pin_s * 1000)),
        age_ms=max(0, round((now_s - table.last_use_s[row]) * 1000)),
        uses=table.uses[row],
    )


def copy_of(parts: MasterParts, rank: int, place: Place) -> CopyDocument:
    """Where one copy of a rank lies."""
    segment = parts.core.look.segment_name(place.segment)
    return CopyDocument(
        rank=rank,
        node=parts.core.look.node_name(segment),
        segment=segment.hex(),
        slot=place.slot,
        generation=place.generation,
        length=place.length,
    )


def describe_all(parts: MasterParts, identity: Identity, keys: list[str]) -> list[Block]:
    """Those of the keys that are there. Raises InvalidKey."""
    found = []
    for key in keys:
        try:
            found.append(describe(parts, *find(parts, identity, key)))
        except InvalidKey:
            raise
        except MoonpoolError:
            continue
    return found
