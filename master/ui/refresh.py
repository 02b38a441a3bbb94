"""Pages that keep themselves up to date."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import ui

from moonpool.master.ui.api import Refusal


async def every(period_s: float, refresh: Callable[[], Awaitable[None]]) -> None:
    """Runs `refresh` now and again while the page is open; a refusal is shown once, not again and again."""
    running = False
    refused = ""

    async def again() -> None:
        nonlocal running, refused
        if running:  # the pool answers slower than we ask
            return
        running = True
        try:
            await refresh()
            refused = ""
        except Refusal as refusal:
            if str(refusal) != refused:
                refused = str(refusal)
                ui.notify(refused, type="negative")
        finally:
            running = False

    await refresh()
    ui.timer(period_s, again, immediate=False)
