"""What has happened lately: the prompts most asked for, events, and calls that took long."""

from __future__ import annotations

from datetime import datetime

from nicegui import ui

from moonpool.master.ui.api import Api, Document, Refusal
from moonpool.master.ui.frame import count_text
from moonpool.master.ui.refresh import every
from moonpool.master.ui.tables import Column, cards_table, show_rows

REFRESH_S = 3.0
TOP_MAX = 50
FORBIDDEN = 403

TOP = (
    Column("prompt", "First block"),
    Column("model", "Model"),
    Column("tenant", "Tenant"),
    Column("requests", "Lookups of late", "right"),
    Column("found", "Found", "right"),
    Column("shared", "Shared beginning", "right"),
)
EVENTS = (Column("time", "Time"), Column("kind", "Kind"), Column("text", "What happened"))
SLOW = (
    Column("time", "Time"),
    Column("call", "Call"),
    Column("took", "Took", "right"),
    Column("peer", "Asked by"),
)

PROMPT = r"""<q-td :props="props"><a class="text-primary mp-mono"
:href="'explorer?keyspace=' + props.row.keyspace + '&block=' + props.row.hash">{{ props.row.prompt }}</a></q-td>"""
EVENTS_KEPT = 200
ROWS_MAX = 100
PAGE = 1000


async def show(api: Api) -> None:
    """Fills the page."""
    top = cards_table(
        "top", TOP, "key", title="Prompts most asked for", rows=10, empty="Nothing was asked for yet."
    )
    top.add_slot("body-cell-prompt", PROMPT)
    with ui.element("div").classes("mp-two"):
        events = cards_table("events", EVENTS, "id", title="Events", rows=15, empty="Nothing yet.")
        slow = cards_table("slow", SLOW, "id", title="Calls over 100 ms", rows=15, empty="None so far.")
    seen: list[Document] = []
    cursor: str | None = None

    async def refresh() -> None:
        nonlocal cursor
        show_rows(top, await _prompts(api))
        while True:  # the list is oldest first, and only grows
            page = await api.get("/events", cursor=cursor, limit=PAGE)
            cursor = page["next_cursor"]
            seen.extend(page["items"])
            del seen[:-EVENTS_KEPT]
            if len(page["items"]) < PAGE:
                break
        show_rows(events, [_row(one) | _words(one) for one in reversed(seen)])
        calls = await api.items("/slow-calls", limit=ROWS_MAX)
        show_rows(slow, [one | _row(one) | {"took": f"{one['took_s']:.2f} s"} for one in calls])

    await every(REFRESH_S, refresh)


def _row(one: Document) -> Document:
    return {"id": f"{one['number']}@{one['master']}", "time": _time(one)}


def _words(event: Document) -> Document:
    return {"kind": event["kind"], "text": event["text"]}


def _time(one: Document) -> str:
    return datetime.fromtimestamp(one["at_s"]).strftime("%H:%M:%S")


async def _prompts(api: Api) -> list[Document]:
    """Nothing where the visitor may see no block."""
    try:
        found = await api.items("/top-prefixes", limit=TOP_MAX)
    except Refusal as refusal:
        if refusal.status != FORBIDDEN:
            raise
        return []
    return [_prompt(one) for one in found]


def _prompt(one: Document) -> Document:
    keyspace, _, block_hash = one["key"].partition("/")
    asked = one["requests"]
    return {
        "key": one["key"],
        "keyspace": keyspace,
        "prompt": block_hash[:12],
        "hash": block_hash,
        "model": one["model"],
        "tenant": one["tenant"],
        "requests": count_text(round(asked, 1)),
        "found": f"{one['found'] / asked:.0%}" if asked else "–",
        "shared": f"{one['shared_tokens']:,} tokens" if one["ready"] else "not there now",
    }
