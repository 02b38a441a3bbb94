"""Events, slow calls, and the configuration in force."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from moonpool.master.events import Event
from moonpool.master.rest.access import Reader
from moonpool.master.rest.failures import responses
from moonpool.master.rest.paging import Cursor, Limit, NumberCursor, Page
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.views import Views
from moonpool.schemas.errors import InvalidParams

router = APIRouter(prefix="/api/v1", tags=["operations"], responses=responses())

POLL_S = 0.25
SILENCE_S = 15.0
STREAM_MAX_S = 3600.0
EVENTS_A_POLL = 256
NUMBER_MAX = 1 << 53


class EventDocument(BaseModel):
    """Something that happened."""

    number: int = Field(description="counts up from 1", examples=[12])
    at_s: float = Field(description="seconds since 1970", examples=[1760000000.5])
    kind: str = Field(examples=["node"])
    text: str = Field(examples=["node n1 is suspect"])
    facts: dict[str, Any] = Field(examples=[{"node": "n1", "state": "suspect"}])


class SlowCallDocument(BaseModel):
    """A call that took long."""

    number: int = Field(examples=[3])
    at_s: float = Field(description="its end, seconds since 1970", examples=[1760000000.5])
    call: str = Field(examples=["Remove"])
    peer: str = Field(examples=["client engine-1 (10.0.0.7:50212)"])
    took_s: float = Field(examples=[0.25])
    failed: bool = Field(examples=[False])


class Setting(BaseModel):
    """One setting."""

    name: str = Field(examples=["http_port"])
    value: Any = Field(description="in force; secrets are masked", examples=[50080])
    origin: str = Field(description="where it came from", examples=["command line"])
    description: str = Field(examples=["port of the REST interface"])


def _document(event: Event) -> EventDocument:
    return EventDocument(
        number=event.number, at_s=event.at_s, kind=event.kind, text=event.text, facts=event.facts
    )


def _number(text: str | None, field: str) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit()) or int(text) > NUMBER_MAX:
        raise InvalidParams(field=field, value=text[:64], allowed="the number of an event")
    return int(text)


@router.get("/events", summary="Events")
async def events(
    views: Views, identity: Reader, cursor: NumberCursor = None, limit: Limit = 100
) -> Page[EventDocument]:
    """The newest 4096 at most, oldest first. `next_cursor` is never null: ask again with it for what is new."""
    after = _number(cursor, "cursor")
    found = [_document(event) for event in views.events.after(after, limit)]
    return Page(items=found, next_cursor=str(found[-1].number if found else after))


@router.get("/events/stream", summary="Events as they happen", response_class=StreamingResponse)
async def stream(
    views: Views,
    identity: Reader,
    last_event_id: Annotated[
        str | None, Header(max_length=32, description="the newest event that was seen; none: only new ones")
    ] = None,
    seconds: Annotated[
        float, Query(gt=0, le=STREAM_MAX_S, description="after which the stream ends")
    ] = STREAM_MAX_S,
) -> StreamingResponse:
    """Server-sent events: `id` is the number, `event` the kind, `data` an event as /events has it. A reader that was
    away sends Last-Event-ID, as browsers do, and misses nothing that is still kept."""
    newest = views.events.newest if last_event_id is None else _number(last_event_id, "last-event-id")
    headers = {"cache-control": "no-store"}
    return StreamingResponse(_stream(views, newest, seconds), media_type="text/event-stream", headers=headers)


async def _stream(views: Views, newest: int, seconds: float) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    spoke_s = loop.time()
    yield ": the pool's events\n\n"
    while loop.time() < end_s:
        for event in views.events.after(newest, EVENTS_A_POLL):
            data = json.dumps(_document(event).model_dump())
            yield f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n"
            newest, spoke_s = event.number, loop.time()
        if loop.time() - spoke_s > SILENCE_S:
            yield ": still here\n\n"
            spoke_s = loop.time()
        await asyncio.sleep(min(POLL_S, max(0.0, end_s - loop.time())))


@router.get("/slow-calls", summary="Calls that took long")
async def slow_calls(
    views: Views, identity: Reader, cursor: NumberCursor = None, limit: Limit = 100
) -> Page[SlowCallDocument]:
    """The newest 256 that took 100 ms or more, newest first."""
    before = _number(cursor, "cursor") or NUMBER_MAX

    def look(parts: MasterParts) -> list[SlowCallDocument]:
        calls = [call for call in reversed(parts.timings.slow) if call.number < before]
        return [SlowCallDocument(**call._asdict()) for call in calls[: limit + 1]]

    found = await views.read(look)
    more = len(found) > limit
    return Page(items=found[:limit], next_cursor=str(found[limit - 1].number) if more else None)


@router.get("/config", summary="Settings in force")
async def config(views: Views, identity: Reader, cursor: Cursor = None, limit: Limit = 100) -> Page[Setting]:
    """Every setting of this master with the place it came from. Secrets are masked."""
    found = []
    for name, field in sorted(type(views.settings).model_fields.items()):
        value = getattr(views.settings, name)
        found.append(
            Setting(
                name=name,
                value=value if field.repr else ("***" if value else ""),
                origin=views.origins.get(name, "unknown"),
                description=field.description or "",
            )
        )
    rest = [setting for setting in found if cursor is None or setting.name > cursor]
    return Page(items=rest[:limit], next_cursor=rest[limit - 1].name if len(rest) > limit else None)
