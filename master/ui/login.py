"""The page where a visitor says which token to act with."""

from __future__ import annotations

from nicegui import ui

from moonpool.master.ui.frame import STYLE
from moonpool.master.ui.sessions import LOGIN_PATH, TOKEN_BYTES_MAX


def page(problem: str = "") -> None:
    """A form of plain HTML: its answer sets the cookie."""
    ui.page_title("Log in · Moonpool")
    ui.add_css(STYLE)
    with (
        ui.column().classes("w-full items-center mp-page"),
        ui.card().classes("mp-card mt-16").style("width: 360px"),
    ):
        ui.label("Moonpool").classes("mp-value")
        ui.label("This pool asks for a token of role monitor or admin.").classes("mp-note")
        if problem:
            ui.label(problem).classes("text-negative text-sm")
        ui.html(
            f'<form method="post" action="{LOGIN_PATH}" style="display:flex;gap:8px;margin-top:8px">'
            f'<input type="password" name="token" maxlength="{TOKEN_BYTES_MAX}" required autofocus'
            ' autocomplete="current-password" aria-label="Token" placeholder="Token" style="flex:1;min-width:0;'
            'padding:8px 10px;border:1px solid var(--mp-line);border-radius:8px;background:transparent;color:inherit">'
            '<button style="padding:8px 14px;border-radius:8px;background:var(--mp-accent);color:var(--mp-card);'
            'font-weight:600">Log in</button></form>',
            sanitize=False,
        )
