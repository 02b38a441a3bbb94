"""What happens in the pool: as pages, and as a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from moonpool.master.events import Event
from moonpool.master.rest.access import Reader
from moonpool.master.rest.cluster_pages import ClusterPage
from moonpool.master.rest.failures import responses
from moonpool.master.rest.gateway import Gateway
from moonpool.master.rest.numbered import (
    NUMBER_MAX,
    LastEvent,
    NumbersCursor,
    Positions,
    cursor_of,
    first_of,
    own_address,
    parse_positions,
)
from moonpool.master.rest.others import OtherMasters, Others, Parts
from moonpool.master.rest.paging import Limit
from moonpool.master.rest.views import Views

router = APIRouter(prefix="/api/v1", tags=["operations"], responses=responses())

EVENTS = "/api/v1/events"
POLL_S = 0.25
POLL_OTHERS_S = 1.0
SILENCE_S = 15.0
STREAM_MAX_S = 3600.0
EVENTS_A_POLL = 256


class EventDocument(BaseModel):
    """Something that happened, as one master saw it."""

    number: int = Field(description="counts up at each master, over restarts too", examples=[1760000000012])
    master: str = Field(description="who saw it", examples=["10.0.0.7:50051"])
    at_s: float = Field(description="seconds since 1970, by that master's clock", examples=[1760000000.5])
    kind: str = Field(examples=["node"])
    text: str = Field(examples=["node n1 is suspect"])
    facts: dict[str, Any] = Field(examples=[{"node": "n1", "state": "suspect"}])


class EventPage(ClusterPage[EventDocument]):
    """Events, oldest first."""

    master: str = Field(description="who answers", examples=["10.0.0.7:50051"])


class Reading:
    """One reader of all masters' events, and how far it is. `here`: this master's address."""

    def __init__(self, views: Gateway, others: OtherMasters, here: str, cursor: str | None) -> None:
        self._views = views
        self._others = others
        self._here = here
        self._positions = parse_positions(cursor, here)

    async def skip(self) -> None:
        """Goes behind the newest events that there are."""
        self._positions = {self._here: self._views.events.newest}
        found = await self._ask({}, unknown=NUMBER_MAX)
        for page in found.found:
            self._positions.update(parse_positions(page.next_cursor, page.master))

    async def page(self, limit: int) -> EventPage:
        """The next events, of all masters."""
        alone = not await self._others.addresses()
        found = await self._ask({"limit": str(limit)})
        items = first_of(
            [self._own(limit), *(page.items for page in found.found)],
            self._positions,
            limit,
            lambda event: event.at_s,
        )
        return EventPage(
            items=items,
            next_cursor=cursor_of(self._positions, self._here, alone=alone),
            unanswered=found.unanswered,
            master=self._here,
        )

    async def _ask(self, params: dict[str, str], unknown: int = 0) -> Parts[EventPage]:
        def behind(master: str) -> dict[str, str]:
            return {**params, "cursor": str(self._positions.get(master, unknown))}

        return await self._others.documents(EventPage, path=EVENTS, params=behind)

    def _own(self, limit: int) -> list[EventDocument]:
        position = min(self._positions.get(self._here, 0), self._views.events.newest)
        self._positions[self._here] = position
        return [_document(event, self._here) for event in self._views.events.after(position, limit)]

    def own_page(self) -> EventPage:
        """The next events of this master."""
        items = first_of([self._own(EVENTS_A_POLL)], self._positions, EVENTS_A_POLL, lambda event: event.at_s)
        return EventPage(items=items, next_cursor=None, master=self._here)

    def positions(self) -> Positions:
        """Behind what was read."""
        return dict(self._positions)


def _document(event: Event, master: str) -> EventDocument:
    return EventDocument(
        number=event.number,
        master=master,
        at_s=event.at_s,
        kind=event.kind,
        text=event.text,
        facts=event.facts,
    )


@router.get("/events", summary="Events")
async def events(
    views: Views, others: Others, identity: Reader, cursor: NumbersCursor = None, limit: Limit = 100
) -> EventPage:
    """The newest 4096 of each master at most, oldest first. `next_cursor` is never null: ask again with it for what is new.
    What several masters saw, a lost node for one, each of them tells."""
    here = await views.read(own_address)
    return await Reading(views, others, here, cursor).page(limit)


@router.get("/events/stream", summary="Events as they happen", response_class=StreamingResponse)
async def stream(
    views: Views,
    others: Others,
    identity: Reader,
    last_event_id: LastEvent = None,
    seconds: Annotated[
        float, Query(gt=0, le=STREAM_MAX_S, description="after which the stream ends")
    ] = STREAM_MAX_S,
) -> StreamingResponse:
    """Server-sent events of all masters: `id` is a cursor of /events, `event` the kind, `data` an event as /events has it.
    A reader that was away sends Last-Event-ID, as browsers do, and misses nothing that is still kept. Masters that stop
    answering are named by an event of kind `unanswered`, without an id."""
    here = await views.read(own_address)
    reading = Reading(views, others, here, last_event_id)
    if last_event_id is None:
        await reading.skip()
    headers = {"cache-control": "no-store"}
    body = _stream(reading, others, here, seconds)
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


async def _stream(reading: Reading, others: OtherMasters, here: str, seconds: float) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    spoke_s, asked_s, silent = loop.time(), float("-inf"), set[str]()
    alone, told = not await others.addresses(), reading.positions()
    yield ": the pool's events\n\n"
    while loop.time() < end_s:
        page = reading.own_page()
        if loop.time() - asked_s >= POLL_OTHERS_S:
            page.items += (whole := await reading.page(EVENTS_A_POLL)).items
            alone, asked_s = not await others.addresses(), loop.time()
            now_silent = {one.master for one in whole.unanswered}
            if now_silent - silent:
                names = json.dumps([one.model_dump() for one in whole.unanswered])
                yield f"event: unanswered\ndata: {names}\n\n"
            silent = now_silent
        for event in page.items:
            data = json.dumps(event.model_dump())
            told[event.master] = event.number
            yield f"id: {cursor_of(told, here, alone=alone)}\nevent: {event.kind}\ndata: {data}\n\n"
            spoke_s = loop.time()
        told = reading.positions()
        if loop.time() - spoke_s > SILENCE_S:
            yield ": still here\n\n"
            spoke_s = loop.time()
        await asyncio.sleep(min(POLL_S, max(0.0, end_s - loop.time())))
