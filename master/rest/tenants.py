"""Tenants: what each stores and may store, and its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from moonpool.master.rest.access import Admin, Known
from moonpool.master.rest.actions import WAIT_MS_MAX, Outcome, everywhere, removed
from moonpool.master.rest.cluster_pages import ClusterPage, cluster_page
from moonpool.master.rest.failures import responses
from moonpool.master.rest.limits import ANSWER_TIMEOUT_S
from moonpool.master.rest.operator import tell
from moonpool.master.rest.others import ACT_TIMEOUT_S, UNANSWERED, Others, Unanswered, with_own
from moonpool.master.rest.paging import Cursor, Limit
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.views import Views
from moonpool.master.traffic import Traffic
from moonpool.schemas.access import TENANT_CHARACTERS_MAX, Identity
from moonpool.schemas.errors import NotFound
from moonpool.schemas.messages import AS_CONFIGURED, Clear, Done, Message, SetTenant

router = APIRouter(prefix="/api/v1", tags=["tenants"], responses=responses())

QUOTA_BYTES_MAX = 1 << 53
"""Up to here numbers are exact in every JSON reader."""

TenantName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=TENANT_CHARACTERS_MAX,
        pattern="^[^/]+$",
        description="its name",
        examples=["red"],
    ),
]


class Tenant(BaseModel):
    """What one tenant stores and may store."""

    tenant: str = Field(examples=["red"])
    quota_bytes: int = Field(description="that it may store; 0: no quota", examples=[10_000_000_000])
    used_bytes: int = Field(
        description="of all copies, and of those that are promised", examples=[4_200_000_000]
    )
    keyspaces: int = Field(examples=[3])
    blocks: int = Field(examples=[120000])
    copies: int = Field(examples=[960000])
    pins: int = Field(examples=[0])
    requests: int = Field(description="lookups since the masters started", examples=[17])
    asked_blocks: int = Field(examples=[5000])
    hit_blocks: int = Field(examples=[4500])
    hit_ratio: float = Field(description="in blocks; 0 where nothing was asked", examples=[0.9])


class WholeTenant(Tenant):
    """One tenant, and what is missing in it."""

    unanswered: list[Unanswered] = UNANSWERED


class Quota(BaseModel):
    """What a tenant may store."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"quota_bytes": 10_000_000_000}]}
    )

    quota_bytes: int = Field(ge=0, le=QUOTA_BYTES_MAX, description="0: no quota")
    dry_run: bool = Field(False, description="only say whether that would change anything")


class QuotaSet(BaseModel):
    """What came of it."""

    dry_run: bool = Field(examples=[False])
    tenant: str = Field(examples=["red"])
    quota_bytes: int = Field(examples=[10_000_000_000])
    changed: bool = Field(description="whether that is new", examples=[True])
    unanswered: list[Unanswered] = UNANSWERED


SUMS = ("used_bytes", "blocks", "copies", "pins", "requests", "asked_blocks", "hit_blocks")
"""Fields that add up over masters."""


def _tenants(parts: MasterParts, identity: Identity) -> list[Tenant]:
    names = [one.tenant for one in parts.core.tenants.list().tenants if identity.sees(one.tenant)]
    traffic = {name: Traffic() for name in names}
    for _, table in parts.core.look.tables():
        if table.spec.tenant in traffic:
            traffic[table.spec.tenant].add(table.traffic)
    return [_tenant(parts, name, traffic[name]) for name in names]


def _tenant(parts: MasterParts, name: str, traffic: Traffic) -> Tenant:
    facts = parts.core.tenants.facts(name)
    return Tenant(
        tenant=name,
        quota_bytes=int(facts["quota_bytes"]),
        used_bytes=int(facts["used_bytes"]),
        keyspaces=int(facts["keyspaces"]),
        blocks=int(facts["rows"]),
        copies=int(facts["copies"]),
        pins=int(facts["pins"]),
        requests=traffic.requests,
        asked_blocks=traffic.asked_blocks,
        hit_blocks=traffic.hit_blocks,
        hit_ratio=round(traffic.hit_blocks / max(1, traffic.asked_blocks), 6),
    )


def _together(documents: list[Tenant]) -> list[Tenant]:
    """One a tenant, of what several masters know of it."""
    found: dict[str, Tenant] = {}
    for document in documents:
        total = found.setdefault(document.tenant, document)
        if total is not document:
            for name in SUMS:
                setattr(total, name, getattr(total, name) + getattr(document, name))
            total.keyspaces = max(total.keyspaces, document.keyspaces)
            total.hit_ratio = round(total.hit_blocks / max(1, total.asked_blocks), 6)
    return [found[name] for name in sorted(found)]


@router.get("/tenants", summary="Tenants")
async def tenants(
    views: Views, others: Others, identity: Known, cursor: Cursor = None, limit: Limit = 100
) -> ClusterPage[Tenant]:
    """Those that have keyspaces or a quota, with what they use. A reader sees its own."""
    look = views.read(lambda parts: _tenants(parts, identity))
    own, found = await with_own(look, others.items(Tenant))
    items = _together([*(own or []), *found.found])
    return cluster_page(items, found.unanswered, lambda document: document.tenant, cursor, limit)


@router.get("/tenants/{tenant}", summary="One tenant", responses=responses(404))
async def tenant(tenant: TenantName, views: Views, others: Others, identity: Known) -> WholeTenant:
    """By name. `unanswered` names masters whose part of it is missing."""

    def look(parts: MasterParts) -> Tenant:
        found = next((one for one in _tenants(parts, identity) if one.tenant == tenant), None)
        if found is None:
            raise NotFound(key=f"tenant {tenant}")
        return found

    own, found = await with_own(views.read(look), others.documents(Tenant))
    (total,) = _together([*([own] if own else []), *found.found])
    return WholeTenant(**total.model_dump(), unanswered=found.unanswered)


@router.put("/tenants/{tenant}", summary="Set a tenant's quota")
async def set_quota(
    tenant: TenantName, quota: Quota, views: Views, others: Others, identity: Admin
) -> QuotaSet:
    """A tenant needs no other creation: it is there with its quota, or its first keyspace."""

    async def run(parts: MasterParts) -> QuotaSet:
        changed = int(parts.core.tenants.facts(tenant)["quota_bytes"]) != quota.quota_bytes
        if not quota.dry_run:
            reply = await tell(parts, identity, SetTenant(tenant, quota.quota_bytes))
            assert isinstance(reply, Done)
            text = f"tenant {tenant} may store {quota.quota_bytes or 'any number of'} bytes, says {identity.name}"
            parts.handler.events.add("tenant", text, tenant=tenant, by=identity.name)
        return QuotaSet(dry_run=quota.dry_run, tenant=tenant, quota_bytes=quota.quota_bytes, changed=changed)

    own = await views.ask(run, ANSWER_TIMEOUT_S)
    found = await others.documents(QuotaSet, quota, timeout_s=ACT_TIMEOUT_S)
    own.changed = own.changed or any(one.changed for one in found.found)
    own.unanswered = found.unanswered
    return own


@router.delete("/tenants/{tenant}", summary="Delete a tenant", responses=responses(404, 409))
async def delete(
    tenant: TenantName,
    views: Views,
    others: Others,
    identity: Admin,
    dry_run: Annotated[bool, Query(description="only say how many blocks would go")] = False,
    force: Annotated[bool, Query(description="leased and pinned blocks too")] = False,
    wait_ms: Annotated[int, Query(ge=0, le=WAIT_MS_MAX, description="for nodes to confirm")] = 1000,
) -> Outcome:
    """All of its blocks, and its quota: what the masters' settings say holds again. Its tokens are in `tokens_file`: engines
    that still have one start it anew. Its empty keyspaces are forgotten when others need their room."""

    async def run(parts: MasterParts) -> Outcome:
        if tenant not in (one.tenant for one in parts.core.tenants.list().tenants):
            raise NotFound(key=f"tenant {tenant}")
        clears = _clears(parts, tenant, force=force, wait_ms=wait_ms, dry_run=dry_run)
        outcome = await removed(parts, identity, clears, dry_run=dry_run)
        if not dry_run:
            await tell(parts, identity, SetTenant(tenant, AS_CONFIGURED))
            text = f"tenant {tenant} and its {outcome.count} blocks were deleted by {identity.name}"
            parts.handler.events.add("tenant", text, tenant=tenant, by=identity.name)
        return outcome

    return await everywhere(views, others, run, None)


def _clears(
    parts: MasterParts, tenant: str, *, force: bool, wait_ms: int, dry_run: bool
) -> Iterator[Message]:
    tables = parts.core.look.tables()
    for keyspace in {table.keyspace: None for _, table in tables if table.spec.tenant == tenant}:
        yield Clear(keyspace, force, wait_ms, dry_run=dry_run)
