"""Calls that took long."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from moonpool.master.rest.access import Reader
from moonpool.master.rest.cluster_pages import ClusterPage
from moonpool.master.rest.failures import responses
from moonpool.master.rest.numbered import (
    NUMBER_MAX,
    NumbersCursor,
    cursor_of,
    first_of,
    own_address,
    parse_positions,
)
from moonpool.master.rest.others import Others
from moonpool.master.rest.paging import Limit
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.views import Views

router = APIRouter(prefix="/api/v1", tags=["operations"], responses=responses())


class SlowCallDocument(BaseModel):
    """A call that took long."""

    number: int = Field(description="counts up at each master, from its start", examples=[3])
    master: str = Field(description="who answered it", examples=["10.0.0.7:50051"])
    at_s: float = Field(description="its end, seconds since 1970", examples=[1760000000.5])
    call: str = Field(examples=["Remove"])
    peer: str = Field(examples=["client engine-1 (10.0.0.7:50212)"])
    took_s: float = Field(examples=[0.25])
    failed: bool = Field(examples=[False])


@router.get("/slow-calls", summary="Calls that took long")
async def slow_calls(
    views: Views, others: Others, identity: Reader, cursor: NumbersCursor = None, limit: Limit = 100
) -> ClusterPage[SlowCallDocument]:
    """The newest 256 of each master that took 100 ms or more, newest first."""

    def look(parts: MasterParts) -> tuple[str, list[SlowCallDocument]]:
        here = own_address(parts)
        before = parse_positions(cursor, here).get(here, NUMBER_MAX)
        calls = [call for call in reversed(parts.timings.slow) if call.number < before]
        return here, [SlowCallDocument(master=here, **call._asdict()) for call in calls[: limit + 1]]

    here, own = await views.read(look)
    positions = parse_positions(cursor, here)

    def before(master: str) -> dict[str, str]:
        return {"limit": str(limit), "cursor": str(positions.get(master, NUMBER_MAX))}

    found = await others.documents(ClusterPage[SlowCallDocument], params=before)
    alone = not await others.addresses()
    lists = [own, *(page.items for page in found.found)]
    more = sum(map(len, lists)) > limit or any(page.next_cursor for page in found.found)
    items = first_of(lists, positions, limit, lambda call: -call.at_s)
    return ClusterPage(
        items=items,
        next_cursor=cursor_of(positions, here, alone=alone) if more else None,
        unanswered=found.unanswered,
    )
