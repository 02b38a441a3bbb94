"""What of a prompt is in the pool and where: each master's part of it, and what they add up to."""

from __future__ import annotations

from collections import Counter

import numpy as np
from pydantic import BaseModel, Field

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_ROW, NO_SEGMENT, view
from moonpool.master.rest.others import UNANSWERED, Parts, Unanswered
from moonpool.master.rest.parts import MasterParts
from moonpool.schemas.access import Identity
from moonpool.schemas.errors import KeyspaceUnknown
from moonpool.schemas.packed import I64, join_hashes
from moonpool.schemas.runs import shard_of, split_runs

ENGINES_MAX = 512


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


class Stretch(BaseModel):
    """A run of a prompt: a stretch of its blocks that lies in one shard."""

    first: int = Field(description="its first block's position", examples=[0])
    asked_blocks: int = Field(description="of the prompt in it", examples=[50])
    blocks: int = Field(description="there, from its first on", examples=[40])
    copies: dict[str, int] = Field(description="of their shards, by node", examples=[{"node": 40}])


class Prefix(BaseModel):
    """What of a prompt is in one keyspace."""

    keyspace: str = Field(examples=["00" * 16])
    model: str = Field(examples=["Qwen/Qwen3-0.6B"])
    blocks: int = Field(description="that would hit, from the first on", examples=[40])
    tokens: int = Field(description="in them", examples=[640])
    asked_blocks: int = Field(examples=[50])
    ranks: int = Field(description="distinct shards of a block", examples=[1])
    block_tokens: int = Field(examples=[16])
    runs: list[Stretch] = Field(description="that the prefix lies in")
    nodes: list[Holder] = Field(description="best first")
    engines: list[Engine] = Field(description="best first")


class Prefixes(BaseModel):
    """One entry a keyspace, the longest prefix first; without those that have none of it."""

    items: list[Prefix]
    unanswered: list[Unanswered] = UNANSWERED


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


def own_parts(parts: MasterParts, identity: Identity, hashes: list[bytes], keyspace: str | None) -> Prefixes:
    """For `all_together`. Raises KeyspaceUnknown."""
    found = [
        _own_part(parts, shards, hashes)
        for shards in chained_tables(parts, identity, keyspace).values()
        if next(iter(shards.values())).spec.hash_bytes == len(hashes[0])
    ]
    return Prefixes(items=[part for part in found if part.runs])


def _own_part(parts: MasterParts, shards: dict[int, ChainedTable], hashes: list[bytes]) -> Prefix:
    """What the shards of this master have of a prompt's runs, whatever is before them. Nothing is leased by looking."""
    any_table = next(iter(shards.values()))
    by_index = {node.index: node.info for node in parts.core.look.nodes()}
    runs = []
    for first, count in split_runs(0, len(hashes)):
        table = shards.get(shard_of(any_table.keyspace, hashes[first], parts.core.look.shards_total))
        length, deepest = (
            (0, NO_ROW) if table is None else table.ready_prefix(join_hashes(hashes[first : first + count]))
        )
        if table is None or not length:
            continue
        rows: I64 = table.ancestors(deepest, length)
        which = [view(layer.which).reshape(-1, table.world)[rows].ravel() for layer in table.layers.all]
        held = np.bincount(np.concatenate(which), minlength=NO_SEGMENT + 1)
        copies = {info.node: int(held[index]) for index, info in by_index.items() if held[index]}
        runs.append(Stretch(first=first, asked_blocks=count, blocks=length, copies=copies))
    named = {name for run in runs for name in run.copies}
    return Prefix(
        keyspace=any_table.keyspace.hex(),
        model=any_table.spec.name,
        blocks=0,
        tokens=0,
        asked_blocks=len(hashes),
        ranks=any_table.world,
        block_tokens=any_table.spec.block_tokens,
        runs=runs,
        nodes=[
            Holder(node=info.node, host=info.host, copies=0, score=0.0)
            for info in by_index.values()
            if info.node in named
        ],
        engines=[Engine(engine=name, host=host, score=0.0) for name, host in parts.handler.clients()],
    )


def _together(parts: list[Prefix]) -> Prefix:
    """The longest prefix that the masters' parts of one keyspace add up to."""
    runs: dict[int, Stretch] = {}
    for run in (run for part in parts for run in part.runs):
        known = runs.setdefault(run.first, run)
        if run.blocks > known.blocks:
            runs[run.first] = run
    total = parts[0].model_copy(update={"runs": []})
    copies, blocks = Counter[str](), 0
    for first in sorted(runs):
        if first != blocks:
            break
        total.runs.append(runs[first])
        copies.update(runs[first].copies)
        blocks += runs[first].blocks
        if runs[first].blocks < runs[first].asked_blocks:
            break
    asked = total.asked_blocks * total.ranks
    hosts = {holder.node: holder.host for part in parts for holder in part.nodes}
    by_host = Counter[str]()
    for node, held in copies.items():
        by_host[hosts[node]] += held
    engines = {(one.engine, one.host) for part in parts for one in part.engines}
    total.blocks, total.tokens = blocks, blocks * total.block_tokens
    total.nodes = sorted(
        (
            Holder(node=node, host=hosts[node], copies=held, score=round(held / asked, 6))
            for node, held in copies.items()
        ),
        key=lambda one: (-one.score, one.node),
    )
    scored = (Engine(engine=name, host=host, score=round(by_host[host] / asked, 6)) for name, host in engines)
    total.engines = sorted(scored, key=lambda one: (-one.score, one.engine))[:ENGINES_MAX]
    return total


def all_together(own: Prefixes | None, found: Parts[Prefixes]) -> Prefixes:
    """Of what each master said."""
    by_keyspace: dict[str, list[Prefix]] = {}
    for said in [*([own] if own else []), *found.found]:
        for part in said.items:
            by_keyspace.setdefault(part.keyspace, []).append(part)
    items = [one for one in map(_together, by_keyspace.values()) if one.blocks]
    return Prefixes(
        items=sorted(items, key=lambda one: (-one.blocks, one.keyspace)), unanswered=found.unanswered
    )
