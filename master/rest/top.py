"""What prompts begin with most often, and what is pinned."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW
from moonpool.master.rest.access import Tenant
from moonpool.master.rest.cluster_pages import ClusterPage, blocks_of_all
from moonpool.master.rest.failures import responses
from moonpool.master.rest.gateway import Slices
from moonpool.master.rest.limits import ANSWER_TIMEOUT_S
from moonpool.master.rest.others import UNANSWERED, Others, Unanswered, with_own
from moonpool.master.rest.paging import Limit, Page, RowCursor
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.rows import Block
from moonpool.master.rest.scans import blocks_page, pinned_row
from moonpool.master.rest.views import Views
from moonpool.master.table import Table
from moonpool.schemas.access import Identity
from moonpool.schemas.runs import FIRST_BOUNDARY

router = APIRouter(prefix="/api/v1", tags=["blocks"], responses=responses())


class TopPrefixDocument(BaseModel):
    """Prompts that begin with the same block."""

    key: str = Field(description="of their first block", examples=["00" * 16 + "/" + "ab" * 32])
    keyspace: str = Field(examples=["00" * 16])
    tenant: str = Field(examples=["default"])
    model: str = Field(examples=["Qwen/Qwen3-0.6B"])
    requests: float = Field(
        description="lookups of late: every quarter of an hour counts half of the next", examples=[120.5]
    )
    found: float = Field(description="those that found the block in the pool", examples=[118.0])
    ready: bool = Field(description="whether it is there now", examples=[True])
    shared_blocks: int = Field(
        description="that all of these prompts in the pool begin with, up to a run's end", examples=[12]
    )
    shared_tokens: int = Field(description="in them", examples=[192])


class TopPrefixList(BaseModel):
    """The most wanted first."""

    items: list[TopPrefixDocument]
    missed_max: float = Field(
        description="counts are exact, or too low by no more than this; what was asked for less often may be missing",
        examples=[0.0],
    )
    unanswered: list[Unanswered] = UNANSWERED


@router.get("/top-prefixes", summary="What prompts begin with most often")
async def top_prefixes(
    views: Views,
    others: Others,
    identity: Tenant,
    keyspace: Annotated[
        str | None,
        Query(pattern="^[0-9a-f]{32}$", description="null: all of the tenant's", examples=["00" * 16]),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="prefixes at most")] = 20,
) -> TopPrefixList:
    """First blocks by how often lookups of late asked for chains that begin with them."""
    look = views.read(lambda parts: _top(parts, identity, keyspace, limit))
    own, found = await with_own(look, others.documents(TopPrefixList))
    lists = [*([own] if own else []), *found.found]
    items = sorted((one for some in lists for one in some.items), key=lambda one: (-one.requests, one.key))
    missed_max = max((some.missed_max for some in lists), default=0.0)
    return TopPrefixList(items=items[:limit], missed_max=missed_max, unanswered=found.unanswered)


def _top(parts: MasterParts, identity: Identity, keyspace: str | None, limit: int) -> TopPrefixList:
    tables: dict[tuple[int, bytes], Table] = {
        (shard, table.keyspace): table
        for shard, table in parts.core.look.tables()
        if identity.sees(table.spec.tenant) and keyspace in (None, table.keyspace.hex())
    }
    found, missed_max = [], 0.0
    for shard, top in parts.core.look.top_prefixes():
        missed_max = max(missed_max, top.missed_max)
        found += [(one, tables.get((shard, one.keyspace))) for one in top.top()]
    seen = [(one, table) for one, table in found if isinstance(table, ChainedTable)]
    seen.sort(key=lambda pair: (-pair[0].requests, pair[0].block_hash))
    items = []
    for one, table in seen[:limit]:
        row = table.rows.get(one.block_hash)
        ready = row != NO_ROW and bool(table.ready[row])
        shared = _shared_blocks(table, row) if ready else 0
        items.append(
            TopPrefixDocument(
                key=f"{one.keyspace.hex()}/{one.block_hash.hex()}",
                keyspace=one.keyspace.hex(),
                tenant=table.spec.tenant,
                model=table.spec.name,
                requests=round(one.requests, 3),
                found=round(one.found, 3),
                ready=ready,
                shared_blocks=shared,
                shared_tokens=shared * table.spec.block_tokens,
            )
        )
    return TopPrefixList(items=items, missed_max=round(missed_max, 3))


def _shared_blocks(table: ChainedTable, row: int) -> int:
    """Ready blocks from `row` on, until the chain branches, or its run ends."""
    count = 1
    while count < FIRST_BOUNDARY:
        child = table.first_child[row]
        if child < 0 or table.next_sibling[child] >= 0 or not table.ready[child]:
            break
        row = child
        count += 1
    return count


@router.get("/pins", summary="Pinned blocks")
async def pins(
    views: Views, others: Others, identity: Tenant, cursor: RowCursor = None, limit: Limit = 100
) -> ClusterPage[Block]:
    """Of all keyspaces that the asker sees, with what is left of each pin. Those that come or go between two pages may be
    missed."""

    def look(parts: MasterParts) -> Slices[Page[Block]]:
        tables = [
            (shard, table) for shard, table in parts.core.look.tables() if identity.sees(table.spec.tenant)
        ]
        return blocks_page(parts, tables, pinned_row, cursor, limit)

    own = views.read_slices(look, ANSWER_TIMEOUT_S)
    return await blocks_of_all(own, others.documents(ClusterPage[Block]), limit)
