"""Asking before something is done that can't be taken back."""

from __future__ import annotations

from nicegui import ui

from moonpool.master.ui.api import Api, Document, Refusal


async def confirm(question: str, consequence: str, word: str = "", more: str = "") -> bool | None:
    """None where the visitor doesn't agree; else whether `more` was ticked. `word`: must be typed where much goes."""
    with ui.dialog() as dialog, ui.card().classes("mp-card").style("min-width: 320px"):
        ui.label(question).classes("font-semibold")
        ui.label(consequence).classes("mp-note")
        typed = ui.input(f"Type {word} to agree").props("dense outlined").classes("w-full") if word else None
        tick = ui.checkbox(more) if more else None
        with ui.row().classes("w-full justify-end gap-2"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps")
            agree = ui.button("Do it", on_click=lambda: dialog.submit(True)).props(
                "no-caps unelevated color=negative"
            )
        if typed is not None:
            agree.set_enabled(False)
            typed.on_value_change(lambda event: agree.set_enabled(event.value == word))
    agreed = await dialog
    ticked = bool(tick and tick.value)
    dialog.delete()
    return ticked if agreed else None


async def attempt(api: Api, path: str, order: Document) -> bool:
    """Does it, and says what came of it. Whether it was done."""
    try:
        outcome = await api.act(path, order)
    except Refusal as refusal:
        ui.notify(str(refusal), type="negative", multi_line=True)
        return False
    skipped = f", {outcome['skipped']} left alone: leased or pinned" if outcome["skipped"] else ""
    ui.notify(f"Done: {outcome['count']:,}{skipped}", type="positive")
    return True


async def delete(api: Api, what: str, selection: Document, word: str = "") -> bool:
    """Deletes a selection once the visitor has seen how much would go, and agreed. Whether it was done."""
    try:
        would = await api.act("/delete", {"selection": selection, "dry_run": True})
    except Refusal as refusal:
        ui.notify(str(refusal), type="negative", multi_line=True)
        return False
    consequence = f"{would['count']:,} blocks go, for every engine that shares them."
    more = f"Also {would['skipped']:,} that are in use or pinned" if would["skipped"] else ""
    force = await confirm(f"Delete {what}?", consequence, word, more)
    if force is None:
        return False
    return await attempt(api, "/delete", {"selection": selection, "force": force})
