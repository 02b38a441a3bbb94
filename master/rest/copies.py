"""Copies: how many blocks should have, ahead of use, and how far nodes are that are to be emptied."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from moonpool.master.copies import COPIES_MAX
from moonpool.master.rest.access import Admin, Reader
from moonpool.master.rest.actions import HASHES_A_CALL, Order, Outcome, everywhere
from moonpool.master.rest.cluster_pages import ClusterPage, cluster_page
from moonpool.master.rest.failures import responses
from moonpool.master.rest.keyspaces import KeyspaceId
from moonpool.master.rest.limits import ANSWER_TIMEOUT_S
from moonpool.master.rest.operator import tell
from moonpool.master.rest.others import ACT_TIMEOUT_S, UNANSWERED, Others, Unanswered, with_own
from moonpool.master.rest.paging import Cursor, Limit
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.selection import Selected, select
from moonpool.master.rest.views import Views
from moonpool.schemas.errors import KeyspaceUnknown
from moonpool.schemas.messages import Done, SetReplicas, Warm, Warmed
from moonpool.schemas.packed import join_hashes

router = APIRouter(prefix="/api/v1", tags=["copies"], responses=responses(404, 409))


class WarmUp(Order):
    """What to copy, and where to."""

    node: str = Field(
        "", max_length=128, description="where the copies are to be; empty: where there is room"
    )
    copies: int = Field(2, ge=1, le=COPIES_MAX, description="without `node`: until there are so many of each")


class WarmingUp(BaseModel):
    """What was ordered, or would be: it is made in the background, as far as there is room."""

    dry_run: bool = Field(examples=[False])
    copies: int = Field(description="of ranks of blocks", examples=[170])
    size_bytes: int = Field(description="their payload", examples=[22282240])
    left_out: int = Field(description="more than may wait at once: ask again later", examples=[0])
    unanswered: list[Unanswered] = UNANSWERED


class Replicas(BaseModel):
    """How many copies."""

    model_config = ConfigDict(extra="forbid")

    replicas: int = Field(
        ge=1, le=COPIES_MAX, description="copies of each rank, on so many hosts", examples=[2]
    )
    dry_run: bool = Field(False, description="only say whether that would change anything")


class DrainDocument(BaseModel):
    """How far a node is that is to be emptied, in copies (ranks of blocks)."""

    node: str = Field(examples=["host-7"])
    moved: int = Field(description="that are elsewhere now", examples=[120])
    moved_bytes: int = Field(examples=[15728640])
    left: int = Field(examples=[30])
    left_bytes: int = Field(description="close, where sizes vary", examples=[3932160])
    no_space: int = Field(description="of those, found no room elsewhere lately", examples=[0])


@router.post("/warm-up", summary="Replicate blocks ahead of use")
async def warm_up(order: WarmUp, views: Views, others: Others, identity: Admin) -> WarmingUp:
    """Of a whole keyspace or tenant the hottest blocks come first. A copy never pushes out what is worth more than it."""

    async def run(parts: MasterParts) -> WarmingUp:
        whole = WarmingUp(dry_run=order.dry_run, copies=0, size_bytes=0, left_out=0)
        for message in _requests(select(parts, identity, order.selection), order):
            reply = await tell(parts, identity, message)
            assert isinstance(reply, Warmed)
            whole.copies += reply.copies
            whole.size_bytes += reply.size_bytes
            whole.left_out += reply.left_out
            await asyncio.sleep(0)  # the master's clients come first
        if whole.copies and not order.dry_run:
            text = f"{whole.copies} copies were ordered by {identity.name}"
            parts.handler.events.add("warm-up", text, by=identity.name, bytes=whole.size_bytes)
        return whole

    asking = others.documents(WarmingUp, order, timeout_s=ACT_TIMEOUT_S)
    own, found = await with_own(views.ask(run, ANSWER_TIMEOUT_S), asking)
    parts = [*([own] if own else []), *found.found]
    return WarmingUp(
        dry_run=order.dry_run,
        copies=sum(part.copies for part in parts),
        size_bytes=sum(part.size_bytes for part in parts),
        left_out=sum(part.left_out for part in parts),
        unanswered=found.unanswered,
    )


def _requests(found: Selected, order: WarmUp) -> list[Warm]:
    whole = [(keyspace, b"") for keyspace in dict.fromkeys(table.keyspace for _, table in found.tables)]
    some = [
        (keyspace, join_hashes(hashes[first : first + HASHES_A_CALL]))
        for keyspace, hashes in found.hashes.items()
        for first in range(0, len(hashes), HASHES_A_CALL)
    ]
    return [
        Warm(keyspace, packed, False, order.node, order.copies, order.dry_run)
        for keyspace, packed in [*whole, *some]
    ]


@router.put("/keyspaces/{keyspace}/replicas", summary="How many copies the blocks of a keyspace should have")
async def replicas(
    keyspace: KeyspaceId,
    order: Replicas,
    views: Views,
    others: Others,
    identity: Admin,
) -> Outcome:
    """They are made, or become the first victims, in the background. `count` is 1 where that is new."""

    async def run(parts: MasterParts) -> Outcome:
        tables = [table for _, table in parts.core.look.tables() if table.keyspace.hex() == keyspace]
        if not tables:
            raise KeyspaceUnknown(keyspace=keyspace)
        if order.dry_run:
            return Outcome(dry_run=True, count=int(tables[0].replicas != order.replicas))
        reply = await tell(parts, identity, SetReplicas(tables[0].keyspace, order.replicas))
        assert isinstance(reply, Done)
        return Outcome(dry_run=False, count=reply.count)

    outcome = await everywhere(views, others, run, order)
    outcome.count = min(1, outcome.count)  # it is one keyspace, whoever knows it
    return outcome


@router.get("/drains", summary="How far nodes are that are to be emptied")
async def drains(
    views: Views, others: Others, identity: Reader, cursor: Cursor = None, limit: Limit = 100
) -> ClusterPage[DrainDocument]:
    """By name; of the whole cluster."""

    def look(parts: MasterParts) -> list[DrainDocument]:
        nodes = parts.core.replication.drains().nodes
        return [
            DrainDocument(**{name: getattr(one, name) for name in one.__struct_fields__}) for one in nodes
        ]

    own, found = await with_own(views.read(look), others.items(DrainDocument))
    total: dict[str, DrainDocument] = {}
    for one in [*(own or []), *found.found]:
        known = total.setdefault(one.node, one)
        for name in ("moved", "moved_bytes", "left", "left_bytes", "no_space") if known is not one else ():
            setattr(known, name, getattr(known, name) + getattr(one, name))
    return cluster_page(
        [total[name] for name in sorted(total)],
        found.unanswered,
        lambda document: document.node,
        cursor,
        limit,
    )
