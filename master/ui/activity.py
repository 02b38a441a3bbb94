"""What has happened lately: the prompts most asked for, events, and calls that took long."""

from __future__ import annotations

from datetime import datetime

from nicegui import ui

from moonpool.master.ui.api import Api, Document
from moonpool.master.ui.refresh import every

REFRESH_S = 3.0
EVENTS_KEPT = 200
ROWS_MAX = 100
PAGE = 1000


async def show(api: Api) -> None:
    """Fills the page."""
    with ui.element("div").classes("mp-two"):
        events = _table("Events", ("time", "kind", "text"))
        slow = _table("Slow calls", ("time", "call", "took", "peer"))
    seen: list[Document] = []
    cursor: str | None = None

    async def refresh() -> None:
        nonlocal cursor
        while True:  # the list is oldest first, and only grows
            page = await api.get("/events", cursor=cursor, limit=PAGE)
            cursor = page["next_cursor"]
            seen.extend(page["items"])
            del seen[:-EVENTS_KEPT]
            if len(page["items"]) < PAGE:
                break
        events.update_rows([_row(one) | _words(one) for one in reversed(seen)])
        calls = await api.items("/slow-calls", limit=ROWS_MAX)
        slow.update_rows([one | _row(one) | {"took": f"{one['took_s']:.2f} s"} for one in calls])

    await every(REFRESH_S, refresh)


def _row(one: Document) -> Document:
    return {"id": f"{one['number']}@{one['master']}", "time": _time(one)}


def _words(event: Document) -> Document:
    return {"kind": event["kind"], "text": event["text"]}


def _time(one: Document) -> str:
    return datetime.fromtimestamp(one["at_s"]).strftime("%H:%M:%S")


def _table(title: str, names: tuple[str, ...]) -> ui.table:
    columns = [{"name": name, "label": name.capitalize(), "field": name, "align": "left"} for name in names]
    table = ui.table(
        rows=[], columns=columns, title=title, row_key="id", pagination={"rowsPerPage": 15}
    ).classes("w-full")
    table.props('flat dense wrap-cells no-data-label="Nothing yet."')
    return table
