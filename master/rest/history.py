"""The last half hour in samples of some seconds, so that a page that has just been opened shows more than a moment."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from moonpool.master.rest.access import Reader
from moonpool.master.rest.cluster_pages import ClusterPage
from moonpool.master.rest.failures import responses
from moonpool.master.rest.gateway import Gateway
from moonpool.master.rest.others import Others
from moonpool.master.rest.paging import LIMIT_MAX, WORDS, Limit, page_of
from moonpool.master.rest.parts import MasterParts
from moonpool.master.traffic import Traffic
from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.messages import NodeState

log = logging.getLogger(__name__)

router = APIRouter(prefix="/api/v1", tags=["cluster"], responses=responses())

PERIOD_S = 3.0
SAMPLES_MAX = 600
COUNTS = ("blocks", "matches", "asked_blocks", "hit_blocks", "written_blocks", "evicted_blocks")
"""Fields that add up over masters."""

MomentCursor = Annotated[
    str | None, Query(pattern=r"^[0-9]{1,13}(\.[0-9]{1,6})?$", description=WORDS, examples=["1760000000.5"])
]


class Sample(BaseModel):
    """One moment. Counters go on from the master's start; take the difference of two for a rate."""

    time_s: float = Field(description="since 1970", examples=[1760000000.0])
    capacity_bytes: int = Field(examples=[8589934592])
    used_bytes: int = Field(examples=[4294967296])
    blocks: int = Field(description="rows of the index", examples=[120000])
    matches: int = Field(description="lookups answered", examples=[1000])
    asked_blocks: int = Field(description="blocks that lookups asked for", examples=[50000])
    hit_blocks: int = Field(
        description="those of them that were there, from the first one on", examples=[42000]
    )
    ceiling: float = Field(description="hit ratio that endless memory would have had so far", examples=[0.94])
    written_blocks: int = Field(
        description="shards of blocks that writers were told to write", examples=[9000]
    )
    evicted_blocks: int = Field(examples=[3000])


class History(ClusterPage[Sample]):
    """Samples, the oldest first."""

    period_s: float = Field(description="between two samples", examples=[PERIOD_S])


class Recorder:
    """Takes a sample every PERIOD_S and keeps SAMPLES_MAX."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    async def run(self, gateway: Gateway) -> None:
        """Until cancelled."""
        while True:
            try:
                self.samples.append(await gateway.read(_sample))
            except MoonpoolError as error:
                log.debug("no sample: %s", error)
            await asyncio.sleep(PERIOD_S)


def _sample(parts: MasterParts) -> Sample:
    core = parts.core
    facts = core.status(parts.clock.now_s())
    nodes = [node for node in core.look.nodes() if node.state is not NodeState.LOST]
    capacity_bytes = sum(node.info.capacity_bytes for node in nodes)
    traffic = Traffic()
    for _, table in core.look.tables():
        traffic.add(table.traffic)
    return Sample(
        time_s=time.time(),
        capacity_bytes=capacity_bytes,
        used_bytes=max(0, capacity_bytes - sum(node.free_bytes for node in nodes)),
        blocks=int(facts["rows"]),
        matches=traffic.requests,
        asked_blocks=traffic.asked_blocks,
        hit_blocks=traffic.hit_blocks,
        ceiling=core.look.ceiling().hit_ratio,
        written_blocks=int(facts.get("put_go", 0)),
        evicted_blocks=traffic.evicted_blocks,
    )


@router.get("/history", summary="The last half hour")
async def history(
    request: Request, others: Others, identity: Reader, cursor: MomentCursor = None, limit: Limit = LIMIT_MAX
) -> History:
    """What the pool's charts show: sums over all masters. `cursor` is the time of a page's last sample."""
    found = await others.documents(History, params=lambda _: {"limit": str(LIMIT_MAX)})
    own = list(request.app.state.recorder.samples)
    samples = together([own, *(page.items for page in found.found)])
    page = page_of(samples, _moment, cursor and f"{float(cursor):017.3f}", limit)
    return History(
        items=page.items,
        next_cursor=page.next_cursor,
        unanswered=found.unanswered,
        period_s=PERIOD_S,
    )


def _moment(sample: Sample) -> str:
    return f"{sample.time_s:017.3f}"


def together(masters: list[list[Sample]]) -> list[Sample]:
    """Samples of one master after another, each at its own moments, as sums at the first one's."""
    total = masters[0]
    for other in masters[1:]:
        at, summed = 0, []
        for sample in total:
            while at < len(other) and other[at].time_s <= sample.time_s:
                at += 1
            summed.append(_sum(sample, other[at - 1]) if at else sample)
        total = summed
    return total


def _sum(one: Sample, other: Sample) -> Sample:
    """Of two masters. What each knows of the whole pool isn't added. Their shards have no block in common, so that ceilings
    add up too."""
    added = {name: getattr(one, name) + getattr(other, name) for name in COUNTS}
    ideal = one.ceiling * one.asked_blocks + other.ceiling * other.asked_blocks
    fuller = max(one, other, key=lambda sample: sample.capacity_bytes)
    return Sample(
        time_s=one.time_s,
        capacity_bytes=fuller.capacity_bytes,
        used_bytes=fuller.used_bytes,
        ceiling=ideal / max(1, added["asked_blocks"]),
        **added,
    )
