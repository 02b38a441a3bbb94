"""What all pages share: the head with its links, light and dark, and how numbers and states are shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import quote

from fastapi import Request
from nicegui import ui

from moonpool import __version__
from moonpool.master.ui.api import Document
from moonpool.master.ui.sessions import COOKIE, token_of

LINKS = (
    ("Overview", "/", "speed"),
    ("Nodes", "/nodes", "dns"),
    ("Keyspaces", "/keyspaces", "category"),
    ("Tenants", "/tenants", "groups"),
    ("Explorer", "/explorer", "account_tree"),
    ("Activity", "/activity", "bolt"),
)
"""Name, path under /ui, icon: the digits 1 to 6 open them too."""

STATE_COLOURS = {
    "live": "positive",
    "joining": "info",
    "draining": "warning",
    "suspect": "warning",
    "lost": "negative",
}

STYLE = """
:root { --mp-ground: #f5f6fa; --mp-card: #ffffff; --mp-line: #e3e6ef; --mp-ink: #1b2033; --mp-soft: #6b7390;
        --mp-accent: #4656d8; --mp-second: #e0912f; }
.body--dark { --mp-ground: #10131f; --mp-card: #191e2e; --mp-line: #2a3147; --mp-ink: #e8ebf5; --mp-soft: #929bb8;
        --mp-accent: #8d9bff; --mp-second: #f4c95d; --q-primary: #8d9bff !important; }
.body--dark .q-btn.bg-primary .q-btn__content { color: #10131f; }
body { background: var(--mp-ground); color: var(--mp-ink); font-family: system-ui, sans-serif; }
.nicegui-content { padding: 0; max-width: 1240px; margin: 0 auto; width: 100%; }
.mp-page { padding: 20px 16px 48px; gap: 16px; }
.q-header { background: var(--mp-card) !important; color: var(--mp-ink) !important;
        border-bottom: 1px solid var(--mp-line); }
.mp-card { background: var(--mp-card); border: 1px solid var(--mp-line); border-radius: 12px; padding: 16px;
        box-shadow: none; color: var(--mp-ink); gap: 6px; }
.mp-label { color: var(--mp-soft); font-size: 12px; letter-spacing: .04em; text-transform: uppercase; }
.mp-value { font-size: 26px; font-weight: 650; line-height: 1.15; font-variant-numeric: tabular-nums; }
.mp-note { color: var(--mp-soft); font-size: 13px; font-variant-numeric: tabular-nums; }
.mp-mono { font-family: ui-monospace, monospace; font-size: 12.5px; overflow-wrap: anywhere; }
.mp-link { color: var(--mp-soft); text-decoration: none; padding: 6px 10px; border-radius: 8px; font-size: 14px; }
.mp-link:hover, .mp-link:focus-visible { background: var(--mp-ground); color: var(--mp-ink); }
.mp-here { color: var(--mp-ink); font-weight: 650; background: var(--mp-ground); }
.mp-kpis { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px; width: 100%; }
.mp-two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 16px;
        width: 100%; }
.mp-heat { display: grid; grid-template-columns: repeat(auto-fill, 14px); gap: 3px; width: 100%; }
.mp-heat div { width: 14px; height: 14px; border-radius: 3px; }
.q-table__card { background: var(--mp-card) !important; color: var(--mp-ink) !important; box-shadow: none !important;
        border: 1px solid var(--mp-line); border-radius: 12px !important; }
.q-table th { color: var(--mp-soft); font-weight: 600; }
.q-table__title { font-size: 15px; font-weight: 650; }
.q-table__bottom--nodata .q-icon { display: none; }
.q-table tbody td { font-variant-numeric: tabular-nums; }
.mp-cell { display: inline-block; min-width: 160px; }
@media (max-width: 640px) {
  .mp-cards thead { display: none; }
  .mp-cards .q-table, .mp-cards tbody { display: block; }
  .mp-cards tbody tr { display: grid; grid-template-columns: 1fr 1fr; gap: 2px 12px; padding: 12px 14px; height: auto; }
  .mp-cards tbody tr + tr { border-top: 1px solid var(--mp-line); }
  .mp-cards tbody td { display: block; border: 0 !important; padding: 3px 0 !important; height: auto !important;
        text-align: left !important; min-width: 0; overflow-wrap: anywhere; }
  .mp-cards tbody td:first-child, .mp-cards .mp-wide { grid-column: 1 / -1; }
  .mp-cards tbody td::before { display: block; position: static !important; background: none !important;
        opacity: 1 !important; color: var(--mp-soft); font-size: 11px; line-height: 1.3; }
}
@media (max-width: 640px) { .mp-words { display: none; } .mp-link { padding: 6px 7px; } .mp-value { font-size: 21px; } }
"""

KEYS = """
if (localStorage.mpDark) setTimeout(() => Quasar.Dark.set(localStorage.mpDark === '1'));
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, textarea')) return;
  const link = document.querySelectorAll('a.mp-link')[Number(event.key) - 1];
  if (event.key >= '1' && event.key <= '9' && link) link.click();
});
"""


def to_login(request: Request, problem: str) -> None:
    """Sends a visitor without rights to the login page."""
    reason = problem if request.cookies.get(COOKIE) else ""
    ui.navigate.to(f"/login?problem={quote(reason[:200])}")


@contextlib.contextmanager
def frame(request: Request, title: str) -> Iterator[None]:
    """The head of a page, and the column that its content stands in."""
    ui.page_title(f"{title} · Moonpool")
    ui.colors(primary="#4656d8", positive="#2b9c74", warning="#d0851f", negative="#cf4a4a")
    ui.add_css(STYLE)
    ui.add_body_html(f"<script>{KEYS}</script>")
    with ui.header().classes("items-center px-4 py-2 gap-1 no-wrap"):
        ui.html(
            '<svg width="24" height="24" viewBox="0 0 32 32" aria-hidden="true"><circle cx="16" cy="16" r="15"'
            ' fill="#26305c"/><path d="M20 5a12 12 0 1 0 7 15A10 10 0 0 1 20 5z" fill="#f4c95d"/></svg>',
            sanitize=False,
        )
        ui.label("Moonpool").classes("text-base font-semibold mr-3 mp-words")
        for name, path, icon in LINKS:
            # No ui.link: that learns its prefix a moment after it can be clicked.
            link = ui.element("a").classes("mp-link" + (" mp-here" if name == title else ""))
            link.props(f'href="{_root(request)}{path}" aria-label="{name}"')
            if name == title:
                link.props('aria-current="page"')
            with link, ui.row().classes("items-center gap-1 no-wrap"):
                ui.icon(icon).classes("text-lg")
                ui.label(name).classes("mp-words")
        ui.space()
        dark = ui.button(icon="contrast").props('flat round dense aria-label="Light or dark" color=grey-6')
        dark.on(
            "click", js_handler="() => { Quasar.Dark.toggle(); localStorage.mpDark = +Quasar.Dark.isActive }"
        )
        if token_of(request):
            ui.html('<form method="post" action="/ui-logout" id="logout"></form>', sanitize=False)
            leave = ui.button(icon="logout").props('flat round dense aria-label="Log out" color=grey-6')
            leave.on("click", js_handler="() => document.getElementById('logout').submit()")
    with ui.column().classes("mp-page w-full"):
        yield
        ui.label(f"Moonpool {__version__} · keys 1 to {len(LINKS)} open the pages").classes(
            "mp-note mp-words"
        )


def _root(request: Request) -> str:
    """What stands before this dashboard's paths: where it is mounted, and a proxy's prefix before that."""
    return quote(request.headers.get("x-forwarded-prefix", "") + request.scope.get("root_path", ""))


def card() -> ui.card:
    """A box on a page."""
    return ui.card().tight().classes("mp-card w-full")


def hit_text(one: Document) -> str:
    """The hit ratio of a keyspace or tenant; a dash where nobody has asked for anything."""
    return f"{one['hit_ratio']:.1%}" if one["asked_blocks"] else "–"


def count_text(count: float) -> str:
    """As people read it: "1.2 M"."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(count) >= limit:
            return f"{count / (1e3 if unit == 'k' else limit):,.1f} {unit}"
    return f"{count:,.0f}" if count >= 100 or count == int(count) else f"{count:,.1f}"


def ago_text(seconds: float) -> str:
    """As people read it: "3 min"."""
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
