"""Who gives memory to the pool: a card a node, and its pages as heat."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui

from moonpool.master.ui.actions import attempt, confirm
from moonpool.master.ui.api import Api, Document, Refusal
from moonpool.master.ui.frame import STATE_COLOURS, ago_text, card, count_text
from moonpool.master.ui.refresh import every
from moonpool.schemas.units import format_size

REFRESH_S = 3.0
NODES_MAX = 200
PAGES_MAX = 1000
HOT_S, COLD_S = 10.0, 600.0
"""Ages between which a page's colour goes from hot to cold."""


async def show(api: Api) -> None:
    """Fills the page."""
    ui.label(
        "A square is a page of the segment: the taller it is filled the more it holds, the warmer its colour the "
        "younger are its blocks."
    ).classes("mp-note")
    grid = ui.element("div").classes("mp-two")
    cards: dict[str, NodeCard] = {}
    empty = ui.label("No node has announced itself: start one with `moonpool node`.")

    async def refresh() -> None:
        found = await api.items("/nodes", limit=NODES_MAX)
        empty.set_visibility(not found)
        for gone in cards.keys() - {node["segment"] for node in found}:
            cards.pop(gone).remove()
        for node in found:
            if node["segment"] not in cards:
                with grid:
                    cards[node["segment"]] = NodeCard(api, node)
            cards[node["segment"]].show(node, await _pages(api, node))

    await every(REFRESH_S, refresh)


async def _pages(api: Api, node: Document) -> list[Document]:
    try:
        return await api.items(f"/segments/{node['segment']}/pages", limit=PAGES_MAX)
    except Refusal:  # a node may go between two questions
        return []


class NodeCard:
    """One node's card, which stays while its numbers change."""

    def __init__(self, api: Api, node: Document) -> None:
        self._name, self._draining = node["node"], False
        self._heat_shown: list[tuple[float, float | None]] = []
        with card() as self._card:
            with ui.row().classes("items-center w-full no-wrap"):
                ui.icon("dns").classes("text-xl")
                ui.label(node["node"]).classes("font-semibold whitespace-nowrap")
                self._state = ui.badge("").props("rounded")
                ui.space()
                self._heard = ui.label().classes("mp-note mp-words whitespace-nowrap")
                self._drain = ui.button("Drain", on_click=lambda: self._turn(api))
                self._drain.props("flat dense no-caps size=sm")
            self._bar = ui.linear_progress(0.0, show_value=False, size="8px").props("rounded")
            self._used = ui.label().classes("mp-note")
            self._heat = ui.html("", sanitize=False).classes("w-full")
            with ui.expansion("Facts").classes("w-full").props("dense header-class=mp-note"):
                words = f"{node['rpc_address']} · data {node['data_address']} · host {node['host']}"
                ui.label(words).classes("mp-mono")
                ui.label(node["segment_path"]).classes("mp-mono")
                self._facts = ui.label().classes("mp-note whitespace-pre-line")

    def show(self, node: Document, pages: Sequence[Document]) -> None:
        """What it is like now."""
        used, capacity = node["used_bytes"], node["capacity_bytes"]
        share = used / capacity if capacity else 0.0
        self._draining = node["draining"]
        self._drain.set_text("Use again" if self._draining else "Drain")
        state = "draining" if self._draining and node["state"] == "live" else node["state"]
        self._state.set_text(state)
        self._state.props(f"color={STATE_COLOURS.get(state, 'grey')}")
        self._heard.set_text(f"heard {ago_text(node['heard_ago_s'])} ago")
        self._bar.set_value(share)
        self._used.set_text(f"{format_size(used)} of {format_size(capacity)} used, {share:.0%}")
        self._facts.set_text("\n".join(_fact(name, value) for name, value in sorted(node["facts"].items())))
        heat = [(page["fill"], page["last_use_ago_s"]) for page in pages]
        if heat != self._heat_shown:
            self._heat_shown = heat
            self._heat.set_content(heat_html(pages))

    async def _turn(self, api: Api) -> None:
        consequence = "It gets no new blocks, and what it holds is moved to others as far as they have room."
        if self._draining or await confirm(f"Drain {self._name}?", consequence) is not None:
            await attempt(api, f"/nodes/{self._name}/drain", {"on": not self._draining})

    def remove(self) -> None:
        """The node is forgotten."""
        self._card.delete()


def _fact(name: str, value: float) -> str:
    words = name.removesuffix("_bytes").replace("_", " ")
    return f"{words}: {format_size(value) if name.endswith('_bytes') else count_text(value)}"


def heat_html(pages: Sequence[Document]) -> str:
    """One square a page, filled from below as it is, in the colour of its age. Numbers only: nothing to escape."""
    squares = []
    for page in pages:
        fill, age_s = round(100 * page["fill"]), page["last_use_ago_s"]
        cold = 0.0 if age_s is None else min(1.0, max(0.0, (age_s - HOT_S) / (COLD_S - HOT_S)))
        colour = f"color-mix(in srgb, var(--mp-second) {round(100 * (1 - cold))}%, var(--mp-accent))"
        used = f"last used {ago_text(age_s)} ago" if age_s is not None else "empty"
        squares.append(
            f'<div title="page {page["page"]:d}: {fill:d} % full, {used}" style="background:linear-gradient(to top,'
            f'{colour} {fill:d}%,var(--mp-line) {fill:d}%)"></div>'
        )
    return f'<div class="mp-heat" role="img" aria-label="{len(squares)} pages">{"".join(squares)}</div>'
