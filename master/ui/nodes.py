"""Who gives memory to the pool: a card a node, and its pages as heat."""

from __future__ import annotations

from nicegui import ui

from moonpool.master.ui.api import Api, Document, Refusal
from moonpool.master.ui.frame import ago_text, card, count_text, size_text, state_chip
from moonpool.master.ui.refresh import every

REFRESH_S = 3.0
NODES_MAX = 200
PAGES_MAX = 1000


async def show(api: Api) -> None:
    """Fills the page."""
    cards = ui.element("div").classes("mp-two")

    async def refresh() -> None:
        found = await api.items("/nodes", limit=NODES_MAX)
        heats = [await _pages(api, node) for node in found]
        cards.clear()
        with cards:
            for node, pages in zip(found, heats, strict=True):
                _node(node, pages)
        if not found:
            with cards, card():
                ui.label("No node has announced itself: start one with `moonpool node`.")

    await every(REFRESH_S, refresh)


async def _pages(api: Api, node: Document) -> list[Document]:
    try:
        return await api.items(f"/nodes/{node['node']}/pages", limit=PAGES_MAX)
    except Refusal:  # a node that is away can't be asked
        return []


def _node(node: Document, pages: list[Document]) -> None:
    used, capacity = node["used_bytes"], node["capacity_bytes"]
    with card():
        with ui.row().classes("items-center w-full no-wrap"):
            ui.icon("dns").classes("text-xl")
            ui.label(node["node"]).classes("font-semibold")
            state_chip(node["state"])
            ui.space()
            ui.label(f"heard {ago_text(node['heard_ago_s'])} ago").classes("mp-note")
        share = used / capacity if capacity else 0.0
        bar = ui.linear_progress(share, show_value=False, size="8px", color="warning" if share > 0.97 else "primary")
        bar.props(f'rounded aria-label="{share:.0%} used"')
        ui.label(f"{size_text(used)} of {size_text(capacity)} used, {share:.0%}").classes("mp-note")
        _heat(pages)
        facts = node["facts"]
        words = [f"{name.replace('_', ' ')} {_fact(name, facts[name])}" for name in sorted(facts)]
        with ui.expansion("Facts").classes("w-full").props("dense"):
            ui.label(f"{node['rpc_address']} · data {node['data_address']} · host {node['host']}").classes("mp-mono")
            ui.label(node["segment_path"]).classes("mp-mono")
            for word in words:
                ui.label(word).classes("mp-note")


def _fact(name: str, value: float) -> str:
    return size_text(value) if name.endswith("_bytes") else count_text(value)


def _heat(pages: list[Document]) -> None:
    """One square a page: how full, and how lately used."""
    if not pages:
        return
    with ui.element("div").classes("mp-heat").props('role="img" aria-label="pages by fill"'):
        for page in pages:
            fill = page["fill"]
            square = ui.element("div").style(
                f"background: color-mix(in srgb, var(--mp-accent) {round(100 * fill)}%, var(--mp-line))"
            )
            square.tooltip(f"page {page['page']}: {fill:.0%} full, slots of {size_text(page['slot_bytes'])}")
