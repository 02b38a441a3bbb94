"""Blocks of a selection, looked up."""

from __future__ import annotations

from fastapi import APIRouter

from moonpool.master.rest.access import Tenant
from moonpool.master.rest.cluster_pages import ClusterPage, blocks_of_all
from moonpool.master.rest.failures import responses
from moonpool.master.rest.gateway import Slices
from moonpool.master.rest.limits import ANSWER_TIMEOUT_S
from moonpool.master.rest.others import Others
from moonpool.master.rest.paging import Limit, Page, RowCursor
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.rows import Block
from moonpool.master.rest.scans import any_row, blocks_page, named_page
from moonpool.master.rest.selection import Selection, select
from moonpool.master.rest.views import Views

router = APIRouter(prefix="/api/v1", tags=["actions"], responses=responses(404, 409))


@router.post("/query", summary="Blocks of a selection")
async def query(
    selection: Selection,
    views: Views,
    others: Others,
    identity: Tenant,
    cursor: RowCursor = None,
    limit: Limit = 100,
) -> ClusterPage[Block]:
    """By key, prefix, keyspace, tenant, request or session, of all masters. Changes nothing."""

    def look(parts: MasterParts) -> Slices[Page[Block]]:
        found = select(parts, identity, selection)
        if found.tables:
            return (yield from blocks_page(parts, found.tables, any_row, cursor, limit))
        return (yield from named_page(parts, identity, found.hashes, cursor, limit))

    own = views.read_slices(look, ANSWER_TIMEOUT_S)
    return await blocks_of_all(own, others.documents(ClusterPage[Block], selection), limit)
