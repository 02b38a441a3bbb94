"""Asking before something is done that can't be taken back."""

from __future__ import annotations

from nicegui import ui


async def confirm(question: str, consequence: str, word: str = "") -> bool:
    """Whether the visitor agrees. `word`: must be typed where much goes at once."""
    with ui.dialog() as dialog, ui.card().classes("mp-card").style("min-width: 320px"):
        ui.label(question).classes("font-semibold")
        ui.label(consequence).classes("mp-note")
        typed = ui.input(f"Type {word} to agree").props("dense outlined").classes("w-full") if word else None
        with ui.row().classes("w-full justify-end gap-2"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps")
            agree = ui.button("Do it", on_click=lambda: dialog.submit(True)).props(
                "no-caps unelevated color=negative"
            )
        if typed is not None:
            agree.set_enabled(False)
            typed.on_value_change(lambda event: agree.set_enabled(event.value == word))
    agreed = bool(await dialog)
    dialog.delete()
    return agreed
