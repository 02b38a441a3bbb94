"""Masters, and who owns which shard of the index."""

from __future__ import annotations

import time
from typing import NamedTuple

from fastapi import APIRouter
from pydantic import BaseModel, Field

from moonpool import __version__
from moonpool.master.membership.seat import advertised
from moonpool.master.outcome import Origin
from moonpool.master.rest.access import Reader
from moonpool.master.rest.cluster_pages import ClusterPage, cluster_page, one_each
from moonpool.master.rest.failures import responses
from moonpool.master.rest.others import Others, with_own
from moonpool.master.rest.paging import Cursor, Limit
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.views import Views
from moonpool.schemas.keyspace import DEFAULT_TENANT
from moonpool.schemas.messages import ClusterMap, GetClusterMap

router = APIRouter(prefix="/api/v1", tags=["cluster"], responses=responses())


class Master(BaseModel):
    """One master process. What only it knows is null where it could not be asked."""

    id: str = Field(examples=["127.0.0.1:50051"])
    address: str = Field(description="for clients and nodes", examples=["127.0.0.1:50051"])
    asked: bool = Field(description="whether it has told this itself", examples=[True])
    shards: list[int] = Field(description="that it owns", examples=[[0]])
    epoch: int | None = Field(examples=[1760000000000])
    connections: int | None = Field(examples=[12])
    version: str | None = Field(examples=[__version__])
    uptime_s: float | None = Field(examples=[3600.5])


class Shard(BaseModel):
    """One shard of the index. How much it holds is null where its owner could not be asked."""

    shard: int = Field(examples=[0])
    master: str | None = Field(
        description="who owns it; null: nobody, as last seen", examples=["127.0.0.1:50051"]
    )
    epoch: int | None = Field(description="of its owner", examples=[1])
    keyspaces: int | None = Field(examples=[3])
    blocks: int | None = Field(examples=[120000])
    copies: int | None = Field(examples=[960000])
    pins: int | None = Field(examples=[0])
    promises: int | None = Field(description="blocks that somebody is about to write", examples=[16])


@router.get("/masters", summary="Master processes")
async def masters(
    views: Views, others: Others, identity: Reader, cursor: Cursor = None, limit: Limit = 100
) -> ClusterPage[Master]:
    """Who serves which shards. Those that can't be asked are there as the answering master has last seen them."""
    own, found = await with_own(views.read(_masters), others.items(Master))
    items = one_each([*(own or []), *found.found], lambda master: master.id, lambda master: master.asked)
    return cluster_page(items, found.unanswered, lambda master: master.id, cursor, limit)


@router.get("/shards", summary="Shards of the index")
async def shards(
    views: Views, others: Others, identity: Reader, cursor: Cursor = None, limit: Limit = 100
) -> ClusterPage[Shard]:
    """Who owns each shard, and how much it holds."""
    own, found = await with_own(views.read(_shards), others.items(Shard))
    # Of a shard that changes hands just now: whoever has it in the greatest epoch.
    items = one_each([*(own or []), *found.found], _shard_key, lambda shard: shard.epoch or -1)
    return cluster_page(items, found.unanswered, _shard_key, cursor, limit)


def _shard_key(shard: Shard) -> str:
    return f"{shard.shard:06}"


class _Map(NamedTuple):
    """The cluster as last seen. `owners`: an address a shard. `here`: this master's own."""

    here: str
    masters: list[str]
    owners: list[str | None]


def _map(parts: MasterParts) -> _Map:
    here = advertised(parts.settings.advertise, parts.handler.address)
    seen = parts.core.handle(GetClusterMap(), parts.clock.now_s(), Origin("", DEFAULT_TENANT)).reply
    assert isinstance(seen, ClusterMap)
    if not seen.masters:  # it is alone, or has seen nobody yet
        return _Map(here, [here], [here if seen.owners else None] * seen.shards)
    names = seen.masters
    return _Map(here, seen.masters, [names[owner] if owner >= 0 else None for owner in seen.owners])


def _masters(parts: MasterParts) -> list[Master]:
    seen = _map(parts)
    found = []
    for name in sorted(seen.masters):
        asked = name == seen.here
        found.append(
            Master(
                id=name,
                address=name,
                asked=asked,
                shards=[shard for shard, owner in enumerate(seen.owners) if owner == name],
                epoch=parts.core.epoch if asked else None,
                connections=parts.handler.connections if asked else None,
                version=__version__ if asked else None,
                uptime_s=round(time.time() - parts.started_s, 3) if asked else None,
            )
        )
    return found


def _shards(parts: MasterParts) -> list[Shard]:
    return [_shard(parts, shard, owner) for shard, owner in enumerate(_map(parts).owners)]


def _shard(parts: MasterParts, shard: int, owner: str | None) -> Shard:
    own = parts.core.shards
    epoch = dict(own.claims).get(shard)
    if epoch is None:
        unknown = dict.fromkeys(("epoch", "keyspaces", "blocks", "copies", "pins", "promises"))
        return Shard(shard=shard, master=owner, **unknown)
    index = own.get(shard)
    facts = index.facts()
    return Shard(
        shard=shard,
        master=owner,
        epoch=epoch,
        keyspaces=len(index.tables),
        blocks=facts["rows"],
        copies=facts["copies"],
        pins=facts["pins"],
        promises=facts["promises"],
    )
