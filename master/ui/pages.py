"""Every page of the dashboard, by its path under /ui."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from nicegui import ui

from moonpool.master.ui import activity, explorer, keyspaces, login, nodes, overview, tenants
from moonpool.master.ui.api import Api, Refusal
from moonpool.master.ui.frame import frame, to_login

Show = Callable[[Api], Awaitable[None]]

PAGES: dict[str, tuple[str, Show]] = {
    "/": ("Overview", overview.show),
    "/nodes": ("Nodes", nodes.show),
    "/keyspaces": ("Keyspaces", keyspaces.show),
    "/tenants": ("Tenants", tenants.show),
    "/explorer": ("Explorer", explorer.show),
    "/activity": ("Activity", activity.show),
}
"""Path, title, and what fills the page."""


def register(app: FastAPI) -> None:
    """Makes the pages known to NiceGUI; they ask `app`."""
    for path, (title, show) in PAGES.items():
        ui.page(path)(_page(app, title, show))
    ui.page("/login")(login.page)


def _page(app: FastAPI, title: str, show: Show) -> Callable[[Request], Awaitable[None]]:
    async def page(request: Request) -> None:
        api = Api(app, request)
        try:
            await api.get("/keyspaces", limit=1)  # whoever has a token of any use may ask for these
        except Refusal as refusal:
            if refusal.status in (401, 403):
                to_login(request, str(refusal))
                return
        with frame(request, title):
            try:
                await show(api)
            except Refusal as refusal:
                ui.label(str(refusal)).classes("text-negative")

    page.__annotations__["request"] = Request  # NiceGUI reads it, and can't resolve the text that it is here
    return page
