"""Segments, and the pages of one: what they hold and how warm they are."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from moonpool.master.columns import view
from moonpool.master.rest.access import Reader
from moonpool.master.rest.cluster_pages import ClusterPage, cluster_page, one_each
from moonpool.master.rest.failures import responses
from moonpool.master.rest.gateway import Slices
from moonpool.master.rest.limits import ANSWER_TIMEOUT_S
from moonpool.master.rest.others import UNANSWERED, Others, Unanswered, with_own
from moonpool.master.rest.paging import Cursor, Limit, Page, page_of
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.views import Views
from moonpool.master.table import Table
from moonpool.schemas.errors import NotFound
from moonpool.schemas.header import SLOT_INDEX_BITS
from moonpool.schemas.packed import I64

router = APIRouter(prefix="/api/v1", tags=["cluster"], responses=responses(404))

SegmentId = Annotated[str, Path(max_length=128, description="its id in hex", examples=["0f" * 16])]
ROWS_A_SLICE = 1 << 15
PAGES_MAX = 1 << 16


class Segment(BaseModel):
    """One segment."""

    segment: str = Field(examples=["0f" * 16])
    node: str = Field(examples=["node"])
    state: str = Field(description="of its node", examples=["live"])
    capacity_bytes: int = Field(examples=[4294967296])
    free_bytes: int = Field(examples=[2147483648])
    page_bytes: int = Field(examples=[67108864])
    pages: int = Field(examples=[64])
    copies: int = Field(description="of blocks' shards on it", examples=[10000])


class WholeSegment(Segment):
    """One segment, and what is missing in it."""

    unanswered: list[Unanswered] = UNANSWERED


class SegmentPage(BaseModel):
    """One page of a segment: a cell of its heat map."""

    page: int = Field(examples=[0])
    copies: int = Field(description="slots in use, as the index knows them", examples=[400])
    used_bytes: int = Field(description="payload in them", examples=[52428800])
    fill: float = Field(description="used_bytes / bytes of a page", examples=[0.78])
    slot_bytes: int = Field(description="mean payload of a slot; 0: empty", examples=[131072])
    last_use_ago_s: float | None = Field(description="of its youngest block; null: empty", examples=[1.5])
    mean_use_ago_s: float | None = Field(description="of its blocks; null: empty", examples=[63.1])


def _segments(parts: MasterParts) -> list[Segment]:
    tables = [table for _, table in parts.core.look.tables()]
    found = []
    for node in parts.core.look.nodes():
        info = node.info
        found.append(
            Segment(
                segment=info.segment.hex(),
                node=info.node,
                state=node.state.name.lower(),
                capacity_bytes=info.capacity_bytes,
                free_bytes=node.free_bytes,
                page_bytes=info.page_bytes,
                pages=info.capacity_bytes // info.page_bytes if info.page_bytes else 0,
                copies=sum(table.copies.get(node.index, 0) for table in tables),
            )
        )
    return sorted(found, key=lambda document: document.segment)


def _one(parts: MasterParts, segment: str) -> Segment:
    found = next((one for one in _segments(parts) if one.segment == segment), None)
    if found is None:
        raise NotFound(key=f"segment {segment[:64]}")
    return found


def _together(documents: list[Segment]) -> list[Segment]:
    """One a segment, with the copies that all masters know of."""
    copies = Counter[str]()
    for document in documents:
        copies[document.segment] += document.copies
    best = one_each(documents, lambda document: document.segment, lambda document: document.state != "lost")
    return [one.model_copy(update={"copies": copies[one.segment]}) for one in best]


@router.get("/segments", summary="Segments")
async def segments(
    views: Views, others: Others, identity: Reader, cursor: Cursor = None, limit: Limit = 100
) -> ClusterPage[Segment]:
    """Every segment of every node."""
    own, found = await with_own(views.read(_segments), others.items(Segment))
    items = _together([*(own or []), *found.found])
    return cluster_page(items, found.unanswered, lambda document: document.segment, cursor, limit)


@router.get("/segments/{segment}", summary="One segment")
async def segment(segment: SegmentId, views: Views, others: Others, identity: Reader) -> WholeSegment:
    """By its id. `unanswered` names masters whose copies are missing in it."""
    look = views.read(lambda parts: _one(parts, segment))
    own, found = await with_own(look, others.documents(Segment))
    (total,) = _together([*([own] if own else []), *found.found])
    return WholeSegment(**total.model_dump(), unanswered=found.unanswered)


@router.get("/segments/{segment}/pages", summary="Heat map of a segment")
async def pages(
    segment: SegmentId,
    views: Views,
    others: Others,
    identity: Reader,
    cursor: Cursor = None,
    limit: Limit = 1000,
) -> ClusterPage[SegmentPage]:
    """How full and how warm each page is, empty ones too. Looks at the whole index, in slices."""

    def look(parts: MasterParts) -> Slices[Page[SegmentPage]]:
        heat = yield from _heat(parts, segment)
        return page_of(heat, lambda page: f"{page.page:08}", cursor, limit)

    own, found = await with_own(
        views.read_slices(look, ANSWER_TIMEOUT_S), others.documents(ClusterPage[SegmentPage])
    )
    masters = [*([own] if own else []), *found.found]
    return ClusterPage(
        items=_warmth([page.items for page in masters]),
        next_cursor=masters[0].next_cursor,  # the same pages at all of them
        unanswered=found.unanswered,
    )


def _warmth(masters: list[list[SegmentPage]]) -> list[SegmentPage]:
    """The same pages as several masters know them, added up."""
    total = {page.page: page for page in masters[0]}
    for page in (page for pages in masters[1:] for page in pages if page.copies):
        known = total.get(page.page)
        total[page.page] = _added(known, page) if known is not None and known.copies else page
    return [total[number] for number in sorted(total)]


def _added(one: SegmentPage, other: SegmentPage) -> SegmentPage:
    copies, used_bytes = one.copies + other.copies, one.used_bytes + other.used_bytes
    ages = [(page.mean_use_ago_s or 0.0) * page.copies for page in (one, other)]
    return SegmentPage(
        page=one.page,
        copies=copies,
        used_bytes=used_bytes,
        fill=round(one.fill + other.fill, 4),
        slot_bytes=used_bytes // copies,
        last_use_ago_s=min(page.last_use_ago_s or 0.0 for page in (one, other)),
        mean_use_ago_s=round(sum(ages) / copies, 3),
    )


def _heat(parts: MasterParts, segment: str) -> Slices[list[SegmentPage]]:
    about = _one(parts, segment)
    index = parts.core.look.segment_index(bytes.fromhex(segment))
    count = min(about.pages, PAGES_MAX)
    copies, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    ages, youngest = np.zeros(count), np.full(count, np.inf)
    now_s = parts.clock.now_s()
    for _, table in list(parts.core.look.tables()):
        if index not in table.copies:
            continue
        for first in range(0, table.columns.count, ROWS_A_SLICE):
            page, length, age = _slice(table, index, slice(first, first + ROWS_A_SLICE), now_s)
            inside = page < count
            page, length, age = page[inside], length[inside], age[inside]
            copies += np.bincount(page, minlength=count)
            sizes += np.bincount(page, length, minlength=count).astype(np.int64)
            ages += np.bincount(page, age, minlength=count)
            np.minimum.at(youngest, page, age)
            yield
    return [
        SegmentPage(
            page=number,
            copies=held,
            used_bytes=size_bytes,
            fill=round(size_bytes / about.page_bytes, 4),
            slot_bytes=size_bytes // held if held else 0,
            last_use_ago_s=round(float(youngest[number]), 3) if held else None,
            mean_use_ago_s=round(float(ages[number]) / held, 3) if held else None,
        )
        for number, (held, size_bytes) in enumerate(zip(copies.tolist(), sizes.tolist(), strict=True))
    ]


def _slice(table: Table, segment: int, rows: slice, now_s: float) -> tuple[I64, I64, np.ndarray]:
    """(page, payload bytes, seconds since last use) of each copy on the segment among these rows."""
    world = table.world
    here = slice(rows.start * world, rows.stop * world)
    found = [np.flatnonzero(view(layer.which)[here] == segment) + here.start for layer in table.layers.all]
    pages = [view(layer.slots)[one] for layer, one in zip(table.layers.all, found, strict=True)]
    cells = np.concatenate(found)
    page = (np.concatenate(pages) >> SLOT_INDEX_BITS).astype(np.int64)
    if table.lengths is None:
        length = np.array(table.spec.shard_bytes, dtype=np.int64)[cells % world]
    else:
        length = view(table.lengths)[cells].astype(np.int64)
    age = np.maximum(0.0, now_s - view(table.last_use_s)[cells // world])
    return page, length, age
