"""The dashboard at /ui: pages of NiceGUI, mounted beside the REST interface that they are made of."""

from __future__ import annotations

import importlib.util
import logging
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # it would say a line for each question of a page

PATH = "/ui"

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><circle cx="16" cy="16" r="15" fill="#16213e"/>'
    '<path d="M20 5a12 12 0 1 0 7 15A10 10 0 0 1 20 5z" fill="#f4c95d"/></svg>'
)


def mount_dashboard(app: FastAPI) -> bool:
    """Adds the dashboard to a REST application. False where NiceGUI is missing, with one line in the log.

    To be called once a process: NiceGUI is one application.
    """
    if importlib.util.find_spec("nicegui") is None:
        log.warning("no dashboard: it needs nicegui (pip install 'moonpool[master]')")
        return False
    # Slow to import, and only wanted by masters that serve people.
    from fastapi import Request
    from fastapi.responses import RedirectResponse
    from nicegui import ui

    from moonpool.master.ui import pages
    from moonpool.master.ui.sessions import install

    pages.register(app)
    install(app)

    async def root(request: Request) -> RedirectResponse:
        prefix = request.headers.get("x-forwarded-prefix", "")
        return RedirectResponse(f"{prefix}{PATH}/")

    app.add_route("/", root, include_in_schema=False)

    ui.run_with(
        app,
        mount_path=PATH,
        title="Moonpool",
        favicon=ICON,
        dark=None,  # as the browser wants it
        binding_refresh_interval=None,  # nothing is bound: pages refresh themselves
        storage_secret=secrets.token_hex(32),
        show_welcome_message=False,
    )
    return True
