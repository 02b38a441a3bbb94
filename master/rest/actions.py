"""What an operator may do: delete, pin, unpin, drain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import view
from moonpool.master.removals import PINS_MAX
from moonpool.master.rest.access import Admin
from moonpool.master.rest.cluster import NodeName
from moonpool.master.rest.failures import responses
from moonpool.master.rest.gateway import Gateway
from moonpool.master.rest.limits import ANSWER_TIMEOUT_S
from moonpool.master.rest.operator import tell
from moonpool.master.rest.others import ACT_TIMEOUT_S, UNANSWERED, OtherMasters, Others, Unanswered, with_own
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.selection import Selected, Selection, select
from moonpool.master.rest.views import Views
from moonpool.schemas.access import Identity
from moonpool.schemas.errors import NotFound, Overloaded
from moonpool.schemas.messages import (
    Clear,
    Done,
    Drain,
    Message,
    Pin,
    Remove,
    Removed,
    Unpin,
)
from moonpool.schemas.packed import join_hashes

router = APIRouter(prefix="/api/v1", tags=["actions"], responses=responses(404, 409))

HASHES_A_CALL = 8192
WAIT_MS_MAX = 20_000
EVICT_BYTES_MAX = 1 << 40
PIN_S_MAX = 10 * 365 * 86400.0


class Order(BaseModel):
    """What to do it to."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"selection": {"request_id": "cmpl-17"}, "dry_run": True}]},
    )

    selection: Selection
    dry_run: bool = Field(False, description="only say what would happen")


class Deletion(Order):
    """What to delete, with all that hangs on it."""

    force: bool = Field(False, description="leased and pinned blocks too")
    wait_ms: int = Field(1000, ge=0, le=WAIT_MS_MAX, description="for nodes to confirm")


class Pinning(Order):
    """What to pin, and for how long."""

    ttl_s: float = Field(0, ge=0, le=PIN_S_MAX, description="0: until it is unpinned")


class Draining(BaseModel):
    """Whether a node is to be emptied."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"on": True, "dry_run": True}]})

    on: bool = Field(True, description="false: it takes new blocks again")
    dry_run: bool = Field(False, description="only say whether that would change anything")


class Outcome(BaseModel):
    """What was done, or would be."""

    dry_run: bool = Field(examples=[False])
    count: int = Field(description="blocks that it concerned", examples=[17])
    skipped: int = Field(0, description="blocks left alone: leased or pinned", examples=[0])
    pending: list[str] = Field([], description="nodes that have not confirmed yet", examples=[[]])
    unanswered: list[Unanswered] = UNANSWERED


def _calls(hashes: list[bytes]) -> Iterator[bytes]:
    for first in range(0, len(hashes), HASHES_A_CALL):
        yield join_hashes(hashes[first : first + HASHES_A_CALL])


@router.post("/delete", summary="Delete a selection")
async def delete(order: Deletion, views: Views, others: Others, identity: Admin) -> Outcome:
    """Blocks, and all that hangs on them. Nobody is given them once this is answered; `pending` names nodes whose
    copies go later."""

    async def run(parts: MasterParts) -> Outcome:
        found = select(parts, identity, order.selection)
        outcome = await removed(parts, identity, _removals(found, order), dry_run=order.dry_run)
        _note(parts, identity, "removal", f"{outcome.count} blocks were deleted", order)
        return outcome

    return await everywhere(views, others, run, order)


async def removed(
    parts: MasterParts, identity: Identity, messages: Iterator[Message], *, dry_run: bool
) -> Outcome:
    """What removals came to."""
    outcome = Outcome(dry_run=dry_run, count=0)
    for message in messages:
        reply = await tell(parts, identity, message)
        assert isinstance(reply, Removed)
        outcome.count += reply.count
        outcome.skipped += reply.skipped
        outcome.pending = sorted({*outcome.pending, *reply.pending})
    return outcome


async def everywhere(
    views: Gateway,
    others: OtherMasters,
    run: Callable[[MasterParts], Awaitable[Outcome]],
    order: BaseModel | None,
) -> Outcome:
    """Done by every master to what it owns. Masters that can't be asked are named: their part is not done."""
    own, found = await with_own(
        views.ask(run, ANSWER_TIMEOUT_S), others.documents(Outcome, order, timeout_s=ACT_TIMEOUT_S)
    )
    parts = [*([own] if own else []), *found.found]
    return Outcome(
        dry_run=parts[0].dry_run,
        count=sum(part.count for part in parts),
        skipped=sum(part.skipped for part in parts),
        pending=sorted({node for part in parts for node in part.pending}),
        unanswered=found.unanswered,
    )


def _removals(found: Selected, order: Deletion) -> Iterator[Message]:
    for keyspace in {table.keyspace: None for _, table in found.tables}:
        yield Clear(keyspace, order.force, order.wait_ms, dry_run=order.dry_run)
    for keyspace, hashes in found.hashes.items():
        for packed in _calls(hashes):
            yield Remove(keyspace, packed, order.force, order.wait_ms, dry_run=order.dry_run)


@router.post("/pin", summary="Pin a selection")
async def pin(order: Pinning, views: Views, others: Others, identity: Admin) -> Outcome:
    """They may not be evicted, nor what they hang on. Of a whole keyspace the leaves are pinned, which keeps the rest."""
    ttl_ms = round(order.ttl_s * 1000)

    async def run(parts: MasterParts) -> Outcome:
        hashes = _leaves(select(parts, identity, order.selection))
        count = await _each(
            parts, identity, hashes, order, lambda keyspace, packed: Pin(keyspace, packed, ttl_ms)
        )
        _note(parts, identity, "pin", f"{count} blocks were pinned", order)
        return Outcome(dry_run=order.dry_run, count=count)

    return await everywhere(views, others, run, order)


@router.post("/unpin", summary="Unpin a selection")
async def unpin(order: Order, views: Views, others: Others, identity: Admin) -> Outcome:
    """They may be evicted again."""

    async def run(parts: MasterParts) -> Outcome:
        found = select(parts, identity, order.selection)
        hashes = dict(found.hashes)
        for _, table in found.tables:
            hashes.setdefault(table.keyspace, []).extend(table.hashes[row] for row in table.pins.rows())
        count = await _each(parts, identity, hashes, order, Unpin)
        _note(parts, identity, "pin", f"{count} blocks were unpinned", order)
        return Outcome(dry_run=order.dry_run, count=count)

    return await everywhere(views, others, run, order)


async def _each(
    parts: MasterParts,
    identity: Identity,
    hashes: dict[bytes, list[bytes]],
    order: Order,
    message: Callable[[bytes, bytes], Message],
) -> int:
    """Says it of each keyspace's hashes, or only counts them; the sum of what was answered."""
    if order.dry_run:
        return sum(map(len, hashes.values()))
    count = 0
    for keyspace, some in hashes.items():
        for packed in _calls(some):
            reply = await tell(parts, identity, message(keyspace, packed))
            assert isinstance(reply, Done)
            count += reply.count
            await asyncio.sleep(0)  # the master's clients come first
    return count


def _leaves(found: Selected) -> dict[bytes, list[bytes]]:
    """Hashes to pin. Raises Overloaded where there are more than may be pinned."""
    hashes = dict(found.hashes)
    for _, table in found.tables:
        wanted = view(table.committed) != 0
        if isinstance(table, ChainedTable):
            wanted &= view(table.first_child) < 0
        rows = np.flatnonzero(wanted)
        if len(rows) > PINS_MAX:
            raise Overloaded(what="the list of pins", limit=PINS_MAX)
        hashes.setdefault(table.keyspace, []).extend(table.hashes[row] for row in rows.tolist())
    return hashes


def _note(parts: MasterParts, identity: Identity, kind: str, text: str, order: Order) -> None:
    if not order.dry_run:
        parts.handler.events.add(kind, f"{text} by {identity.name}", by=identity.name)


@router.post("/nodes/{node}/drain", summary="Empty a node, or use it again")
async def drain(node: NodeName, order: Draining, views: Views, others: Others, identity: Admin) -> Outcome:
    """It gets no new blocks, and those it has are copied to others as far as they have room, and dropped: see
    GET /drains. `count` is 1 where that was not so already."""

    async def run(parts: MasterParts) -> Outcome:
        draining = {entry.info.node: entry.draining for entry in parts.core.look.entries()}
        if node not in draining:
            raise NotFound(key=f"node {node}")
        if order.dry_run:
            return Outcome(dry_run=True, count=int(draining[node] is not order.on))
        reply = await tell(parts, identity, Drain(node, order.on))
        assert isinstance(reply, Done)
        text = f"node {node} is {'to be emptied' if order.on else 'in use again'}, says {identity.name}"
        parts.handler.events.add("drain", text, node=node, on=order.on, by=identity.name)
        return Outcome(dry_run=False, count=reply.count)

    outcome = await everywhere(views, others, run, order)
    outcome.count = min(1, outcome.count)  # it is one node, whoever knows it
    return outcome
