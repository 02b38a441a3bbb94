"""Prefixes: what of a prompt is in the pool and where, and who should be given the prompt."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_SEGMENT, view
from moonpool.master.rest.access import Tenant
from moonpool.master.rest.failures import responses
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.views import Views
from moonpool.schemas.access import Identity
from moonpool.schemas.errors import InvalidParams, KeyspaceUnknown
from moonpool.schemas.packed import I64, join_hashes
from moonpool.schemas.runs import shard_of, split_runs

router = APIRouter(prefix="/api/v1", tags=["blocks"], responses=responses(404))

HASH = r"([0-9a-f]{32}|[0-9a-f]{64})"
HASHES_MAX = 8192
ROUTED_MAX = 512


class Prompt(BaseModel):
    """Block hashes of a prompt, from its first block on."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"hashes": ["ab" * 32], "keyspace": None}]}
    )

    hashes: list[Annotated[str, Field(pattern=f"^{HASH}$")]] = Field(min_length=1, max_length=HASHES_MAX)
    keyspace: str | None = Field(None, pattern="^[0-9a-f]{32}$", description="null: all of the tenant's")


class Holder(BaseModel):
    """A node that holds some of a prefix."""

    node: str = Field(examples=["node"])
    host: str = Field(examples=["5c1e-26"])
    copies: int = Field(description="of the prefix's shards on it", examples=[40])
    score: float = Field(description="share of the prompt that it holds, 0 to 1", examples=[0.8])


class Engine(BaseModel):
    """A client of the pool."""

    engine: str = Field(description="its name", examples=["engine-1"])
    host: str = Field(examples=["5c1e-26"])
    score: float = Field(
        description="share of the prompt that lies on its own host, 0 to 1: the rest comes over the network",
        examples=[0.8],
    )


class Prefix(BaseModel):
    """What of a prompt is in one keyspace."""

    keyspace: str = Field(examples=["00" * 16])
    model: str = Field(examples=["Qwen/Qwen3-0.6B"])
    blocks: int = Field(description="that would hit, from the first on", examples=[40])
    tokens: int = Field(description="in them", examples=[640])
    asked_blocks: int = Field(examples=[50])
    nodes: list[Holder] = Field(description="best first")
    engines: list[Engine] = Field(description="best first")


class Prefixes(BaseModel):
    """One entry a keyspace, the longest prefix first; without those that have none of it."""

    items: list[Prefix]


def chained_tables(
    parts: MasterParts, identity: Identity, keyspace: str | None
) -> dict[bytes, dict[int, ChainedTable]]:
    """By keyspace and shard: those that the asker sees, or of them one keyspace's. Raises KeyspaceUnknown."""
    tables: dict[bytes, dict[int, ChainedTable]] = {}
    for shard, table in parts.core.look.tables():
        wanted = keyspace is None or table.keyspace.hex() == keyspace
        if wanted and isinstance(table, ChainedTable) and identity.sees(table.spec.tenant):
            tables.setdefault(table.keyspace, {})[shard] = table
    if keyspace is not None and not tables:
        raise KeyspaceUnknown(keyspace=keyspace)
    return tables


def _prefixes(parts: MasterParts, identity: Identity, hashes: list[bytes], keyspace: str | None) -> Prefixes:
    found = [
        longest_prefix(parts, shards, hashes)
        for shards in chained_tables(parts, identity, keyspace).values()
        if next(iter(shards.values())).spec.hash_bytes == len(hashes[0])
    ]
    return Prefixes(items=sorted((one for one in found if one.blocks), key=lambda one: -one.blocks))


def longest_prefix(parts: MasterParts, shards: dict[int, ChainedTable], hashes: list[bytes]) -> Prefix:
    """What of a prompt one keyspace has. Nothing is leased by looking."""
    any_table = next(iter(shards.values()))
    blocks, copies = 0, np.zeros(NO_SEGMENT + 1, dtype=np.int64)
    for first, count in split_runs(0, len(hashes)):
        shard = shard_of(any_table.keyspace, hashes[first], parts.core.look.shards_total)
        table = shards.get(shard)
        if table is None:
            break
        length, deepest = table.ready_prefix(join_hashes(hashes[first : first + count]))
        if length:
            rows: I64 = table.ancestors(deepest, length)
            which = view(table.which).reshape(-1, table.world)[rows]
            copies += np.bincount(which.ravel(), minlength=NO_SEGMENT + 1)
        blocks += length
        if length < count:
            break
    asked = len(hashes) * any_table.world
    nodes, by_host = [], dict[str, float]()
    for node in parts.core.look.nodes():
        held = int(copies[node.index])
        if held:
            score = round(held / asked, 6)
            nodes.append(Holder(node=node.info.node, host=node.info.host, copies=held, score=score))
            by_host[node.info.host] = by_host.get(node.info.host, 0.0) + score
    engines = [
        Engine(engine=name, host=host, score=round(by_host.get(host, 0.0), 6))
        for name, host in parts.handler.clients()
    ]
    return Prefix(
        keyspace=any_table.keyspace.hex(),
        model=any_table.spec.name,
        blocks=blocks,
        tokens=blocks * any_table.spec.block_tokens,
        asked_blocks=len(hashes),
        nodes=sorted(nodes, key=lambda one: (-one.score, one.node)),
        engines=sorted(engines, key=lambda one: (-one.score, one.engine))[:ROUTED_MAX],
    )


def _checked(hashes: list[str]) -> list[bytes]:
    if len({len(one) for one in hashes}) > 1:
        raise InvalidParams(field="hashes", value="of two lengths", allowed="hashes of one length")
    return [bytes.fromhex(one) for one in hashes]


@router.post("/prefixes", summary="What of a prompt would hit, and where it lies")
async def prefixes(prompt: Prompt, views: Views, identity: Tenant) -> Prefixes:
    """Longest ready prefix in each keyspace. Nothing is leased, and it doesn't count as a lookup."""
    hashes = _checked(prompt.hashes)
    return await views.read(lambda parts: _prefixes(parts, identity, hashes, prompt.keyspace))


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
    identity: Tenant,
    keyspace: Annotated[
        str | None, Query(pattern="^[0-9a-f]{32}$", description="null: all of the tenant's")
    ] = None,
) -> Prefixes:
    """Nodes and engines scored by how much of the prompt they have near, for routers without an index of their own."""
    some = _checked(hashes.split(","))
    return await views.read(lambda parts: _prefixes(parts, identity, some, keyspace))
