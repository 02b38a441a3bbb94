"""Prefixes: what of a prompt is in the pool and where, and who should be given the prompt."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from moonpool.master.rest.access import Tenant
from moonpool.master.rest.failures import responses
from moonpool.master.rest.gateway import Gateway
from moonpool.master.rest.others import OtherMasters, Others, with_own
from moonpool.master.rest.prefixes import Prefixes, all_together, own_parts
from moonpool.master.rest.views import Views
from moonpool.schemas.access import Identity
from moonpool.schemas.errors import InvalidParams

router = APIRouter(prefix="/api/v1", tags=["blocks"], responses=responses(404))

HASH = r"([0-9a-f]{32}|[0-9a-f]{64})"
HASHES_MAX = 8192
ROUTED_MAX = 512
PREFIXES = "/api/v1/prefixes"


class Prompt(BaseModel):
    """Block hashes of a prompt, from its first block on."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"hashes": ["ab" * 32], "keyspace": None}]}
    )

    hashes: list[Annotated[str, Field(pattern=f"^{HASH}$")]] = Field(min_length=1, max_length=HASHES_MAX)
    keyspace: str | None = Field(
        None, pattern="^[0-9a-f]{32}$", description="null: all of the tenant's", examples=["00" * 16]
    )


async def prefixes_of(
    views: Gateway,
    others: OtherMasters,
    identity: Identity,
    hashes: list[bytes],
    keyspace: str | None,
) -> Prefixes:
    """Of the whole cluster; for another master: this one's part."""
    look = views.read(lambda parts: own_parts(parts, identity, hashes, keyspace))
    if others.asked_by_master:
        return await look
    prompt = Prompt(hashes=[one.hex() for one in hashes], keyspace=keyspace)
    asking = others.documents(Prefixes, prompt, path=PREFIXES, params=lambda _: {})
    return all_together(*await with_own(look, asking))


def _checked(hashes: list[str]) -> list[bytes]:
    if len({len(one) for one in hashes}) > 1:
        raise InvalidParams(field="hashes", value="of two lengths", allowed="hashes of one length")
    return [bytes.fromhex(one) for one in hashes]


@router.post("/prefixes", summary="What of a prompt would hit, and where it lies")
async def prefixes(prompt: Prompt, views: Views, others: Others, identity: Tenant) -> Prefixes:
    """Longest ready prefix in each keyspace, over all masters. Nothing is leased, and it doesn't count as a lookup."""
    return await prefixes_of(views, others, identity, _checked(prompt.hashes), prompt.keyspace)


@router.get("/route", summary="Who should be given a prompt")
async def route(
    hashes: Annotated[
        str,
        Query(
            max_length=ROUTED_MAX * 65,
            pattern="^([0-9a-f]{32}(,[0-9a-f]{32})*|[0-9a-f]{64}(,[0-9a-f]{64})*)$",
            description="block hashes in hex, from the first block on, with commas between them",
            examples=["ab" * 32],
        ),
    ],
    views: Views,
    others: Others,
    identity: Tenant,
    keyspace: Annotated[
        str | None,
        Query(pattern="^[0-9a-f]{32}$", description="null: all of the tenant's", examples=["00" * 16]),
    ] = None,
) -> Prefixes:
    """Nodes and engines scored by how much of the prompt they have near, for routers without an index of their own."""
    return await prefixes_of(views, others, identity, _checked(hashes.split(",")), keyspace)
