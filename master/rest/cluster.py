"""Health, cluster, masters, shards, nodes and segments."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field

from moonpool import __version__
from moonpool.master.node import Node
from moonpool.master.rest.access import Reader
from moonpool.master.rest.cluster_pages import ClusterPage, cluster_page, one_each
from moonpool.master.rest.failures import responses
from moonpool.master.rest.others import UNANSWERED, Others, Unanswered, with_own
from moonpool.master.rest.paging import Cursor, Limit
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.views import Views
from moonpool.schemas.errors import MoonpoolError, NotFound
from moonpool.schemas.messages import NodeState

router = APIRouter(prefix="/api/v1", tags=["cluster"], responses=responses())

NodeName = Annotated[str, Path(max_length=128, description="its name", examples=["node"])]


class Live(BaseModel):
    """Whether the process works."""

    live: bool = Field(description="whether the master's event loop answers", examples=[True])
    answered_in_ms: float = Field(description="how long it took to", examples=[0.2])


class Health(Live):
    """Whether it serves, and what to look at."""

    ready: bool = Field(description="whether clients and nodes are served", examples=[True])
    reasons: list[str] = Field(description="why it isn't ready", examples=[[]])
    warnings: list[str] = Field(
        description="what an operator should look at, although it serves", examples=[["no node is live"]]
    )
    version: str = Field(description="of Moonpool", examples=[__version__])
    uptime_s: float = Field(description="since the master started", examples=[3600.5])


class Cluster(BaseModel):
    """The pool at a glance."""

    epoch: int = Field(examples=[1760000000000])
    shards: int = Field(description="of the index", examples=[1])
    masters: int = Field(examples=[1])
    nodes: dict[str, int] = Field(description="by state", examples=[{"live": 2, "suspect": 0}])
    capacity_bytes: int = Field(description="of nodes that aren't lost", examples=[8589934592])
    used_bytes: int = Field(examples=[4294967296])
    free_bytes: int = Field(examples=[4294967296])
    keyspaces: int = Field(description="known to the master that knows most", examples=[3])
    blocks: int = Field(description="rows of the index", examples=[120000])
    copies: int = Field(description="shards of blocks, on all nodes", examples=[960000])
    pins: int = Field(description="pinned blocks", examples=[0])
    counters: dict[str, int | float | str] = Field(
        description="the answering master's own facts, as `moonpool status` shows them",
        examples=[{"matches": 17}],
    )
    unanswered: list[Unanswered] = UNANSWERED


OF_NODES = ("nodes", "capacity_bytes", "used_bytes", "free_bytes")
"""Fields that every master knows by itself, once it has heard of all nodes."""


class NodeDocument(BaseModel):
    """One node and its segment."""

    node: str = Field(description="its name", examples=["node"])
    segment: str = Field(description="its segment's id", examples=["0f" * 16])
    state: Literal["joining", "live", "suspect", "lost"] = Field(examples=["live"])
    connected: bool = Field(examples=[True])
    draining: bool = Field(description="whether nothing new is put there", examples=[False])
    heard_ago_s: float = Field(description="since its last message", examples=[0.4])
    host: str = Field(description="equal for processes that can map its segment", examples=["5c1e-26"])
    rpc_address: str = Field(examples=["127.0.0.1:41001"])
    data_address: str = Field(examples=["127.0.0.1:41002"])
    engine_address: str = Field(description="of its transfer engine; empty: none", examples=[""])
    segment_path: str = Field(examples=["/dev/shm/moonpool-0-node-0f0f.segment"])
    capacity_bytes: int = Field(examples=[4294967296])
    free_bytes: int = Field(examples=[2147483648])
    used_bytes: int = Field(examples=[2147483648])
    page_bytes: int = Field(examples=[67108864])
    pages: int = Field(description="of its segment", examples=[64])
    facts: dict[str, int | float] = Field(
        description="its own counters, as of its last heartbeat", examples=[{"objects": 1000}]
    )


def _node(node: Node, now_s: float, draining: Collection[str]) -> NodeDocument:
    info = node.info
    return NodeDocument(
        node=info.node,
        segment=info.segment.hex(),
        state=node.state.name.lower(),
        connected=node.connected,
        draining=info.node in draining,
        heard_ago_s=round(max(0.0, now_s - node.heard_s), 3),
        host=info.host,
        rpc_address=info.rpc_address,
        data_address=info.data_address,
        engine_address=info.engine_address,
        segment_path=info.segment_path,
        capacity_bytes=info.capacity_bytes,
        free_bytes=node.free_bytes,
        used_bytes=max(0, info.capacity_bytes - node.free_bytes),
        page_bytes=info.page_bytes,
        pages=info.capacity_bytes // info.page_bytes if info.page_bytes else 0,
        facts=node.facts,
    )


def _nodes(parts: MasterParts) -> list[NodeDocument]:
    now_s = parts.clock.now_s()
    draining = {entry.info.node for entry in parts.core.look.entries() if entry.draining}
    documents = [_node(node, now_s, draining) for node in parts.core.look.nodes()]
    return sorted(documents, key=_node_key)


def _node_key(document: NodeDocument) -> str:
    return f"{document.node}/{document.segment}"


def _freshness(document: NodeDocument) -> float:
    return document.connected - document.heard_ago_s / 1e9


# ------------------------------------------------------------ health


@router.get("/health/live", summary="Whether the process works")
async def live(views: Views) -> Live:
    """200 as soon as the master's event loop answers. For a liveness probe; no token is needed."""
    start_s = time.perf_counter()
    await views.read(lambda parts: None)
    return Live(live=True, answered_in_ms=round((time.perf_counter() - start_s) * 1000, 3))


@router.get("/health/ready", summary="Whether clients and nodes are served")
async def ready(views: Views, response: Response) -> Health:
    """503, with the reasons, while this master doesn't serve. For a readiness probe; no token is needed."""
    found = await _health(views)
    response.status_code = 200 if found.ready else 503
    return found


@router.get("/health", summary="Live, ready, and what to look at")
async def health(views: Views) -> Health:
    """Always 200: what a person looks at first. No token is needed."""
    return await _health(views)


async def _health(views: Views) -> Health:
    start_s = time.perf_counter()
    try:
        nodes, serving = await views.read(lambda parts: (_nodes(parts), parts.handler.serving()))
    except MoonpoolError as error:
        return Health(
            live=False,
            answered_in_ms=round((time.perf_counter() - start_s) * 1000, 3),
            ready=False,
            reasons=[f"the master's event loop does not answer: {error}"],
            warnings=[],
            version=__version__,
            uptime_s=round(time.time() - views.started_s, 3),
        )
    states = [node.state for node in nodes]
    warnings = [f"node {node.node} is {node.state}" for node in nodes if node.state != "live"][:64]
    if "live" not in states:
        warnings.insert(0, "no node is live: nothing can be stored")
    return Health(
        live=True,
        answered_in_ms=round((time.perf_counter() - start_s) * 1000, 3),
        ready=serving,
        reasons=[] if serving else ["this master does not hold its lease: others may own its shards"],
        warnings=warnings,
        version=__version__,
        uptime_s=round(time.time() - views.started_s, 3),
    )


# ------------------------------------------------------------ cluster


def _cluster(parts: MasterParts) -> Cluster:
    facts = parts.core.status(parts.clock.now_s())
    nodes = [node for node in parts.core.look.nodes() if node.state is not NodeState.LOST]
    capacity_bytes = sum(node.info.capacity_bytes for node in nodes)
    free_bytes = sum(node.free_bytes for node in nodes)
    return Cluster(
        epoch=parts.core.epoch,
        shards=int(facts["shards"]),
        masters=int(facts["masters"]),
        nodes={state.name.lower(): int(facts[f"nodes_{state.name.lower()}"]) for state in NodeState},
        capacity_bytes=capacity_bytes,
        used_bytes=max(0, capacity_bytes - free_bytes),
        free_bytes=free_bytes,
        keyspaces=int(facts["keyspaces"]),
        blocks=int(facts["rows"]),
        copies=int(facts["copies"]),
        pins=int(facts["pins"]),
        counters=facts,
    )


@router.get("/cluster", summary="The pool at a glance")
async def cluster(views: Views, others: Others, identity: Reader) -> Cluster:
    """Sizes and counts of the whole pool."""

    own, found = await with_own(views.read(_cluster), others.documents(Cluster))
    assert own is not None
    for other in found.found:
        own.blocks += other.blocks
        own.copies += other.copies
        own.pins += other.pins
        own.keyspaces = max(own.keyspaces, other.keyspaces)
        if other.capacity_bytes > own.capacity_bytes:  # one that has just started hasn't heard of all nodes
            own = own.model_copy(update={name: getattr(other, name) for name in OF_NODES})
    own.unanswered = found.unanswered
    return own


@router.get("/nodes", summary="Nodes")
async def nodes(
    views: Views, others: Others, identity: Reader, cursor: Cursor = None, limit: Limit = 100
) -> ClusterPage[NodeDocument]:
    """Every node with its segment, lost ones too for some minutes. As the master knows it that heard it last."""
    own, found = await with_own(views.read(_nodes), others.items(NodeDocument))
    items = one_each([*(own or []), *found.found], _node_key, _freshness)
    return cluster_page(items, found.unanswered, _node_key, cursor, limit)


@router.get("/nodes/{node}", summary="One node", responses=responses(404))
async def node(node: NodeName, views: Views, others: Others, identity: Reader) -> NodeDocument:
    """By name: its newest segment where there were several."""

    def look(parts: MasterParts) -> NodeDocument:
        found = [document for document in _nodes(parts) if document.node == node]
        if not found:
            raise NotFound(key=f"node {node}")
        return min(found, key=lambda document: document.heard_ago_s)

    own, found = await with_own(views.read(look), others.documents(NodeDocument))
    return max([*([own] if own else []), *found.found], key=_freshness)
