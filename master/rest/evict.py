"""Having a node give up what it would give up next anyway."""

from __future__ import annotations

import time

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from moonpool.master.rest.access import Admin
from moonpool.master.rest.failures import responses
from moonpool.master.rest.gateway import Gateway
from moonpool.master.rest.others import UNANSWERED, OtherMasters, Others, Parts, Unanswered
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.views import Views
from moonpool.schemas.access import Identity
from moonpool.schemas.errors import NotFound
from moonpool.schemas.messages import NodeState
from moonpool.store_client.node.need_merge import NOTHING, ROUNDS_MAX, NeedMerge

router = APIRouter(prefix="/api/v1", tags=["actions"], responses=responses(404, 409))

EVICT_BYTES_MAX = 1 << 40
HERE = ""
"""This master, among the addresses of the others."""


class Eviction(BaseModel):
    """How much a node is to give up."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"node": "node", "size_bytes": 1}]}
    )

    node: str = Field(max_length=128, description="its name", examples=["node"])
    size_bytes: int = Field(
        ge=1, le=EVICT_BYTES_MAX, description="payload; one call takes a bounded number of blocks"
    )
    dry_run: bool = Field(False, description="only say how old the next victim is")


class Evicted(BaseModel):
    """What a node gives up."""

    dry_run: bool = Field(examples=[False])
    freed_bytes: int = Field(examples=[1048576])
    next_age_s: float | None = Field(
        description="age of the node's next victim; null: there is none", examples=[63.5]
    )
    unanswered: list[Unanswered] = UNANSWERED


@router.post("/evict", summary="Have a node give up its next victims")
async def evict(order: Eviction, views: Views, others: Others, identity: Admin) -> Evicted:
    """The blocks that would go next anyway, in the same order: the masters' oldest first. One call takes a bounded number;
    ask again for more."""
    masters = [HERE, *await others.addresses()]
    looked = {master: await _one(master, order, 0, views, others, identity) for master in masters}
    unanswered = [one for parts in looked.values() for one in parts.unanswered]
    ages = {master: parts.found[0].next_age_s for master, parts in looked.items() if parts.found}
    if not ages:
        raise NotFound(key=f"node {order.node}")
    freed_bytes, merge = 0, NeedMerge()
    for master, age_s in ages.items():
        _note(merge, master, age_s)
    for _ in range(0 if order.dry_run else ROUNDS_MAX):
        chosen = merge.choose(list(ages), order.size_bytes, order.size_bytes - freed_bytes)
        if chosen is None or chosen[1] <= 0:
            break
        master, size_bytes = chosen
        parts = await _one(master, order, size_bytes, views, others, identity)
        unanswered += parts.unanswered
        ages[master] = parts.found[0].next_age_s if parts.found else None
        freed_bytes += sum(part.freed_bytes for part in parts.found)
        _note(merge, master, ages[master] if any(part.freed_bytes for part in parts.found) else None)
    oldest = max((age_s for age_s in ages.values() if age_s is not None), default=None)
    return Evicted(dry_run=order.dry_run, freed_bytes=freed_bytes, next_age_s=oldest, unanswered=unanswered)


def _note(merge: NeedMerge, master: str, age_s: float | None) -> None:
    merge.answered(master, NOTHING if age_s is None else round(age_s * 1000), time.monotonic())


async def _one(
    master: str, order: Eviction, size_bytes: int, views: Gateway, others: OtherMasters, identity: Identity
) -> Parts[Evicted]:
    """What one master makes a node give up; with 0 bytes nothing. Nothing is found where it doesn't know the node."""
    if master != HERE:
        update = {"dry_run": True} if not size_bytes else {"size_bytes": size_bytes}
        return await others.documents(Evicted, order.model_copy(update=update), only=master)
    try:
        own = await views.read(lambda parts: _evict(parts, identity, order.node, size_bytes))
    except NotFound:
        return Parts()
    return Parts([own])


def _evict(parts: MasterParts, identity: Identity, name: str, size_bytes: int) -> Evicted:
    nodes = [node for node in parts.core.look.nodes() if node.info.node == name]
    here = [node for node in nodes if node.state is not NodeState.LOST]
    if not here:
        raise NotFound(key=f"node {name}")
    victims = parts.handler.evict(here[-1].info.segment, size_bytes)
    if victims.freed_bytes:
        text = f"node {name} was told to give up {victims.freed_bytes} bytes by {identity.name}"
        parts.handler.events.add("eviction", text, node=name, bytes=victims.freed_bytes)
    age_s = victims.next_age_ms / 1000 if victims.next_age_ms >= 0 else None
    return Evicted(dry_run=not size_bytes, freed_bytes=victims.freed_bytes, next_age_s=age_s)
