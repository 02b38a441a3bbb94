"""The chain explorer: a prefix tree, stretch by stretch, down to where each rank's shard lies."""

from __future__ import annotations

from dataclasses import dataclass

from nicegui import ui

from moonpool.master.ui.actions import attempt, delete
from moonpool.master.ui.api import Api, Document, Refusal
from moonpool.master.ui.frame import ago_text, card
from moonpool.master.ui.tables import Column, cards_table, show_rows
from moonpool.schemas.units import format_size

ROOTS_MAX = 50
COPIES = (
    Column("rank", "Rank"),
    Column("node", "Node"),
    Column("slot", "Slot", "right"),
    Column("generation", "Generation", "right"),
    Column("size", "Size", "right"),
)
STRETCH_MAX = 64
"""Blocks that are walked at once: a run of a chain without branches."""

BRANCHES_MAX = 50


@dataclass(frozen=True, slots=True)
class Stretch:
    """Blocks that follow each other without a branch, and the blocks that hang on the last one."""

    blocks: list[Document]
    branches: list[Document]

    @property
    def title(self) -> str:
        """Positions, as in "0 to 23"."""
        first, last = self.blocks[0]["position"], self.blocks[-1]["position"]
        return f"block {first}" if first == last else f"blocks {first} to {last}"


async def walk(api: Api, first: Document) -> Stretch:
    """From a block on. Raises Refusal."""
    blocks = [first]
    while True:
        children = await api.items("/chains", key=blocks[-1]["key"], limit=BRANCHES_MAX)
        if len(children) != 1 or len(blocks) == STRETCH_MAX:
            return Stretch(blocks, children)
        blocks.append(children[0])


async def show(api: Api) -> None:
    """Fills the page."""
    keyspaces = [one for one in await api.items("/keyspaces", limit=500) if one["kind"] == "chained"]
    if not keyspaces:
        ui.label("No engine has registered a keyspace yet.")
        return
    names = {one["keyspace"]: f"{one['name']} ({one['keyspace'][:8]})" for one in keyspaces}
    wanted = ui.context.client.request.query_params.get("keyspace")
    with card(), ui.row().classes("w-full items-center gap-3"):
        choice = ui.select(
            names, value=wanted if wanted in names else keyspaces[0]["keyspace"], label="Keyspace"
        )
        choice.props("outlined dense options-dense").classes("grow").style("min-width: 240px")
        key = ui.input("A block's hash or key").props("outlined dense clearable").classes("grow mp-mono")
        ui.button("Find", on_click=lambda: find()).props("unelevated no-caps")
    with ui.element("div").classes("mp-two"):
        tree = ui.column().classes("w-full gap-1")
        with ui.column().classes("w-full"):
            detail = card()
    view = Tree(api, tree, detail)

    async def roots() -> None:
        tree.clear()
        found = await api.items(f"/keyspaces/{choice.value}/blocks", only="first", limit=ROOTS_MAX)
        found.sort(key=lambda block: block["age_ms"])
        with tree:
            ui.label(
                f"{len(found)} beginnings of prompts, the youngest first" if found else "It holds no block."
            ).classes("mp-note")
            for block in found:
                view.branch(block)

    async def find() -> None:
        text = (key.value or "").strip()
        if not text:
            await roots()
            return
        try:
            block = await api.get(
                "/blocks", key=text if "/" in text or "@" in text else f"{choice.value}/{text}"
            )
        except Refusal as refusal:
            ui.notify(str(refusal), type="negative")
            return
        tree.clear()
        with tree:
            view.branch(block)
        view.show_block(block)

    choice.on_value_change(roots)
    key.on("keydown.enter", find)
    key.value = ui.context.client.request.query_params.get("block", "")
    await find()


class Tree:
    """What is open of the prefix tree, and the block that is looked at."""

    def __init__(self, api: Api, column: ui.column, detail: ui.card) -> None:
        self._api, self._column, self._detail = api, column, detail
        with detail:
            ui.label("Choose a stretch to see where its blocks lie.").classes("mp-note")

    def branch(self, first: Document) -> None:
        """One line of the tree, opened when it is clicked."""
        title = f"from block {first['position']}  ·  {first['hash'][:10]}"
        with (
            ui.expansion(title, icon="subdirectory_arrow_right")
            .classes("w-full mp-card")
            .style("padding: 0") as line
        ):
            line.props("dense expand-separator")
            inside = ui.column().classes("w-full gap-1 pl-2")
        opened = False

        async def fill() -> None:
            nonlocal opened
            if opened or not line.value:
                return
            opened = True
            try:
                stretch = await walk(self._api, first)
            except Refusal as refusal:
                ui.notify(str(refusal), type="negative")
                return
            line.set_text(f"{stretch.title}  ·  {first['hash'][:10]}")
            with inside:
                self._stretch(stretch)

        line.on_value_change(fill)

    def _stretch(self, stretch: Stretch) -> None:
        last = stretch.blocks[-1]
        nodes = sorted({copy["node"] for block in stretch.blocks for copy in block["copies"]})
        ready = sum(block["ready"] for block in stretch.blocks)
        words = f"{ready} of {len(stretch.blocks)} ready · used {ago_text(last['age_ms'] / 1000)} ago · on {', '.join(nodes)}"
        ui.label(words).classes("mp-note")
        with ui.element("div").classes("mp-heat"):
            for block in stretch.blocks:
                whole = block["ranks_there"] / max(1, block["ranks"])
                square = ui.element("div").style(
                    f"cursor: pointer; background: color-mix(in srgb, var(--mp-accent) {round(100 * whole)}%, var(--mp-line))"
                )
                square.tooltip(f"block {block['position']}").on(
                    "click", lambda block=block: self.show_block(block)
                )
        self.show_block(last)
        if last["run_ends"] and not stretch.branches:
            ui.label("The run ends here: what follows is indexed on its own.").classes("mp-note")
        for branch in stretch.branches:
            self.branch(branch)

    def show_block(self, block: Document) -> None:
        """Everything about one block, and what can be done with it."""
        self._detail.clear()
        with self._detail:
            ui.label(f"Block {block['position']}").classes("font-semibold")
            ui.label(block["key"]).classes("mp-mono")
            lease = f"leased for {block['lease_ms'] / 1000:.0f} s" if block["lease_ms"] > 0 else "no lease"
            pin = "pinned" if block["pinned"] else "not pinned"
            ui.label(
                f"{'ready' if block['ready'] else 'not ready'} · {block['ranks_there']} of {block['ranks']} ranks · {lease} · {pin}"
                f" · used {ago_text(block['age_ms'] / 1000)} ago, {block['uses']} times · shard {block['shard']}"
            ).classes("mp-note")
            rows = [copy | {"size": format_size(copy["length"])} for copy in block["copies"]]
            show_rows(cards_table("copies", COPIES, "rank", empty="No copy."), rows)
            with ui.row().classes("gap-2"):
                self._button("Unpin" if block["pinned"] else "Pin", "push_pin", block)
                self._button("Delete", "delete", block)

    def _button(self, name: str, icon: str, block: Document) -> None:
        async def act() -> None:
            selection = {"keys": [block["key"]]}
            if name == "Delete":
                if await delete(self._api, f"block {block['position']}", selection):
                    self._detail.clear()
            elif await attempt(self._api, f"/{name.lower()}", {"selection": selection}):
                self.show_block(await self._api.get("/blocks", key=block["key"]))

        ui.button(name, icon=icon, on_click=act).props("flat dense no-caps")
