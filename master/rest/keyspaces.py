"""Keyspaces, their blocks, and chains of blocks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW
from moonpool.master.rest.access import Known, Tenant
from moonpool.master.rest.cluster_pages import ClusterPage, blocks_of_all, cluster_page
from moonpool.master.rest.failures import responses
from moonpool.master.rest.gateway import Slices
from moonpool.master.rest.limits import ANSWER_TIMEOUT_S
from moonpool.master.rest.others import UNANSWERED, Others, Unanswered, with_own
from moonpool.master.rest.paging import Cursor, HashCursor, Limit, Page, RowCursor
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.rows import KEY_PATTERN, SHORT_FORM, Block, describe, find, tables_of
from moonpool.master.rest.scans import any_row, blocks_page, first_row, pinned_row
from moonpool.master.rest.views import Views
from moonpool.master.traffic import Traffic
from moonpool.schemas.access import Identity
from moonpool.schemas.errors import InvalidParams, NotFound

router = APIRouter(prefix="/api/v1", tags=["blocks"], responses=responses(404))

KeyspaceId = Annotated[
    str, Path(max_length=64, description="its digest: 32 hex digits", examples=["00" * 16])
]
Key = Annotated[
    str,
    Query(
        max_length=4096, pattern=KEY_PATTERN, description=SHORT_FORM, examples=["00" * 16 + "/" + "ab" * 32]
    ),
]


class Keyspace(BaseModel):
    """One keyspace."""

    keyspace: str = Field(description="its digest", examples=["00" * 16])
    tenant: str = Field(examples=["default"])
    name: str = Field(description="of the model", examples=["Qwen/Qwen3-0.6B"])
    kind: str = Field(description="chained or flat", examples=["chained"])
    ranks: int = Field(description="distinct shards of a block", examples=[8])
    block_tokens: int = Field(examples=[16])
    shard_bytes: list[int] = Field(description="of one block, by rank; 0: sizes vary", examples=[[65536]])
    hash_bytes: int = Field(examples=[32])
    identity: dict[str, str] = Field(
        description="what must be equal for two engines to share blocks", examples=[{"dtype": "bfloat16"}]
    )
    blocks: int = Field(examples=[120000])
    copies: int = Field(examples=[960000])
    size_bytes: int = Field(description="payload; 0 where sizes vary", examples=[7864320000])
    pins: int = Field(examples=[0])
    requests: int = Field(description="lookups since the master started", examples=[17])
    asked_blocks: int = Field(examples=[5000])
    hit_blocks: int = Field(examples=[4500])
    hit_ratio: float = Field(description="in blocks; 0 where nothing was asked", examples=[0.9])
    evicted_blocks: int = Field(examples=[0])
    replicas: int = Field(1, description="copies that each rank of a block should have", examples=[1])


class WholeKeyspace(Keyspace):
    """One keyspace, and what is missing in it."""

    unanswered: list[Unanswered] = UNANSWERED


COUNTS = (
    "blocks",
    "copies",
    "size_bytes",
    "pins",
    "requests",
    "asked_blocks",
    "hit_blocks",
    "evicted_blocks",
)
"""Fields that add up over masters."""


def _keyspaces(parts: MasterParts, identity: Identity, tenant: str | None) -> list[Keyspace]:
    found: dict[bytes, Keyspace] = {}
    for _, table in parts.core.look.tables():
        spec = table.spec
        if not identity.sees(spec.tenant) or tenant not in (None, spec.tenant):
            continue
        if table.keyspace not in found:
            found[table.keyspace] = Keyspace(
                keyspace=table.keyspace.hex(),
                tenant=spec.tenant,
                name=spec.name,
                kind=spec.kind.value,
                ranks=spec.world,
                block_tokens=spec.block_tokens,
                shard_bytes=list(spec.shard_bytes),
                hash_bytes=spec.hash_bytes,
                identity=dict(spec.identity),
                **dict.fromkeys(("blocks", "copies", "size_bytes", "pins"), 0),
                **dict.fromkeys(("requests", "asked_blocks", "hit_blocks", "evicted_blocks"), 0),
                hit_ratio=0.0,
                replicas=table.replicas,
            )
        document, traffic = found[table.keyspace], table.traffic
        _add(document, traffic)
        copies = sum(table.copies.values())
        document.blocks += len(table)
        document.copies += copies
        document.size_bytes += copies * sum(spec.shard_bytes) // spec.world
        document.pins += len(table.pins)
    return sorted(found.values(), key=lambda document: document.keyspace)


def _add(document: Keyspace, traffic: Traffic) -> None:
    document.requests += traffic.requests
    document.asked_blocks += traffic.asked_blocks
    document.hit_blocks += traffic.hit_blocks
    document.evicted_blocks += traffic.evicted_blocks
    if document.asked_blocks:
        document.hit_ratio = round(document.hit_blocks / document.asked_blocks, 6)


def _together(documents: list[Keyspace]) -> list[Keyspace]:
    """One a keyspace, of what several masters hold of it."""
    found: dict[str, Keyspace] = {}
    for document in documents:
        total = found.setdefault(document.keyspace, document)
        if total is not document:
            for name in COUNTS:
                setattr(total, name, getattr(total, name) + getattr(document, name))
            total.hit_ratio = round(total.hit_blocks / max(1, total.asked_blocks), 6)
    return sorted(found.values(), key=lambda document: document.keyspace)


@router.get("/keyspaces", summary="Keyspaces")
async def keyspaces(
    views: Views,
    others: Others,
    identity: Known,
    tenant: Annotated[
        str | None, Query(max_length=128, description="only this tenant's", examples=["red"])
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ClusterPage[Keyspace]:
    """What each holds and how it is hit. A reader sees its own tenant's."""
    look = views.read(lambda parts: _keyspaces(parts, identity, tenant))
    own, found = await with_own(look, others.items(Keyspace))
    items = _together([*(own or []), *found.found])
    return cluster_page(items, found.unanswered, lambda document: document.keyspace, cursor, limit)


@router.get("/keyspaces/{keyspace}", summary="One keyspace")
async def keyspace(keyspace: KeyspaceId, views: Views, others: Others, identity: Known) -> WholeKeyspace:
    """By its digest. `unanswered` names masters whose part of it is missing."""

    def look(parts: MasterParts) -> Keyspace:
        tables_of(parts, identity, keyspace)
        return next(one for one in _keyspaces(parts, identity, None) if one.keyspace == keyspace)

    own, found = await with_own(views.read(look), others.documents(Keyspace))
    (total,) = _together([*([own] if own else []), *found.found])
    return WholeKeyspace(**total.model_dump(), unanswered=found.unanswered)


@router.get("/keyspaces/{keyspace}/blocks", summary="Blocks of a keyspace")
async def blocks(
    keyspace: KeyspaceId,
    views: Views,
    others: Others,
    identity: Tenant,
    only: Annotated[
        str | None,
        Query(
            pattern="^(first|pinned)$",
            description="first: blocks that chains begin with; pinned: those",
            examples=["first"],
        ),
    ] = None,
    cursor: RowCursor = None,
    limit: Limit = 100,
) -> ClusterPage[Block]:
    """All of them, of all masters, by shard and number there. Those that come or go between two pages may be missed;
    those of a shard that changes hands meanwhile may come twice."""
    wanted = {"first": first_row, "pinned": pinned_row}.get(only or "", any_row)

    def look(parts: MasterParts) -> Slices[Page[Block]]:
        return blocks_page(parts, tables_of(parts, identity, keyspace), wanted, cursor, limit)

    own = views.read_slices(look, ANSWER_TIMEOUT_S)
    return await blocks_of_all(own, others.documents(ClusterPage[Block]), limit)


@router.get("/blocks", summary="One block by its key")
async def block(key: Key, views: Views, others: Others, identity: Tenant) -> Block:
    """Its ranks, copies, lease, pin, last use and position, from the master that owns its shard."""
    own, found = await with_own(
        views.read(lambda parts: describe(parts, *find(parts, identity, key))), others.documents(Block)
    )
    return own or found.found[0]


@router.get("/chains", summary="Children of a block")
async def chains(
    key: Key,
    views: Views,
    others: Others,
    identity: Tenant,
    cursor: HashCursor = None,
    limit: Annotated[int, Query(ge=1, le=100, description="items of a page at most")] = 100,
) -> Page[Block]:
    """The blocks that hang on this one directly: how a prefix tree is walked. Where a run ends (`run_ends`) the tree
    goes on in another one, which the index doesn't link."""

    def look(parts: MasterParts) -> Page[Block]:
        shard, table, row = find(parts, identity, key)
        if not isinstance(table, ChainedTable):
            raise InvalidParams(field="key", value=key[:200], allowed="keys of chained keyspaces")
        child = table.first_child[row] if cursor is None else _row(table, row, cursor)
        items: list[Block] = []
        while child >= 0 and len(items) < limit:
            items.append(describe(parts, shard, table, child))
            child = table.next_sibling[child]
        return Page(items=items, next_cursor=table.hashes[child].hex() if child >= 0 else None)

    own, found = await with_own(views.read(look), others.documents(Page[Block]))
    return own or found.found[0]


def _row(table: ChainedTable, parent: int, cursor: str) -> int:
    """The child where the page begins. Raises NotFound where it has gone meanwhile."""
    row = table.rows.get(bytes.fromhex(cursor))
    if row == NO_ROW or table.parent[row] != parent:
        raise NotFound(key=f"the block where the page begins ({cursor})")
    return row
