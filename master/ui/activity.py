"""activity."""

from __future__ import annotations

from moonpool.master.ui.api import Api


async def show(api: Api) -> None:
    """Fills the page."""
