"""What has happened lately: the prompts most asked for, events, and calls that took long."""

from __future__ import annotations

from datetime import datetime

from nicegui import ui

from moonpool.master.ui.api import Api, Document
from moonpool.master.ui.refresh import every

REFRESH_S = 3.0
EVENTS_KEPT = 200
ROWS_MAX = 100


async def show(api: Api) -> None:
    """Fills the page."""
    with ui.element("div").classes("mp-two"):
        events = _table("Events", ("time", "kind", "text"))
        slow = _table("Slow calls", ("time", "call", "took", "peer"))
    seen: list[Document] = []

    async def refresh() -> None:
        while True:  # the list is oldest first, and only grows
            new = await api.items("/events", cursor=seen[-1]["number"] if seen else 0, limit=1000)
            seen.extend(new)
            del seen[:-EVENTS_KEPT]
            if len(new) < 1000:
                break
        events.update_rows(
            [{"number": one["number"], "time": _time(one), **_words(one)} for one in reversed(seen)]
        )
        calls = await api.items("/slow-calls", limit=ROWS_MAX)
        slow.update_rows([one | {"time": _time(one), "took": f"{one['took_s']:.2f} s"} for one in calls])

    await every(REFRESH_S, refresh)


def _words(event: Document) -> Document:
    return {"kind": event["kind"], "text": event["text"]}


def _time(one: Document) -> str:
    return datetime.fromtimestamp(one["at_s"]).strftime("%H:%M:%S")


def _table(title: str, names: tuple[str, ...]) -> ui.table:
    columns = [{"name": name, "label": name.capitalize(), "field": name, "align": "left"} for name in names]
    table = ui.table(
        rows=[], columns=columns, title=title, row_key="number", pagination={"rowsPerPage": 15}
    ).classes("w-full")
    table.props('flat dense wrap-cells no-data-label="Nothing yet."')
    return table
