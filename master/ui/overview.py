"""The pool at a glance: how full, how useful, how busy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from nicegui import ui

from moonpool.master.ui.api import Api, Document
from moonpool.master.ui.charts import BYTES, PERCENT, RATE, Chart, Line
from moonpool.master.ui.frame import card, count_text
from moonpool.master.ui.refresh import every
from moonpool.schemas.units import format_size

REFRESH_S = 3.0
RECENT_S = 60.0
"""What the figures at the top are taken over."""

Points = list[tuple[float, float | None]]


class Figure:
    """A number with a name and a line of explanation."""

    def __init__(self, name: str) -> None:
        with ui.card().tight().classes("mp-card"):
            ui.label(name).classes("mp-label")
            self._value = ui.label("–").classes("mp-value")
            self._note = ui.label("").classes("mp-note")

    def show(self, value: str, note: str) -> None:
        """What it is now."""
        self._value.set_text(value)
        self._note.set_text(note)


async def show(api: Api) -> None:
    """Fills the page."""
    warnings = ui.column().classes("w-full gap-1")
    with ui.element("div").classes("mp-kpis"):
        names = (
            "Hit ratio",
            "Memory used",
            "Lookups",
            "Blocks written",
            "Blocks evicted",
            "Nodes",
        )
        figures = {name: Figure(name) for name in names}
    with ui.element("div").classes("mp-two"):
        hits = Chart("Hit ratio in blocks", [Line("found"), Line("ceiling", dashed=True)], PERCENT, top=1.0)
        memory = Chart("Memory", [Line("used", filled=True), Line("capacity", dashed=True)], BYTES)
        traffic = Chart("Blocks looked up a second", [Line("found", filled=True), Line("asked for")], RATE)
        churn = Chart("Blocks a second", [Line("written"), Line("evicted")], RATE)

    async def refresh() -> None:
        cluster, health = await api.get("/cluster"), await api.get("/health")
        samples = await api.items("/history")
        missing = [
            f"master {one['master']} has not answered, and its part is missing here: {one['reason']}"
            for one in cluster["unanswered"]
        ]
        _show_warnings(warnings, [*health["reasons"], *health["warnings"], *missing])
        _show_figures(figures, cluster, samples)
        times = [sample["time_s"] for sample in samples]
        hits.show(*_ratios(samples))
        memory.show(
            *(list(zip(times, _column(samples, n), strict=True)) for n in ("used_bytes", "capacity_bytes"))
        )
        traffic.show(_rates(samples, "hit_blocks"), _rates(samples, "asked_blocks"))
        churn.show(_rates(samples, "written_blocks"), _rates(samples, "evicted_blocks"))

    await every(REFRESH_S, refresh)


def _show_warnings(column: ui.column, reasons: Sequence[str]) -> None:
    column.clear()
    column.set_visibility(bool(reasons))
    with column:
        for reason in reasons:
            with card().classes("flex-row items-center gap-2 no-wrap"):
                ui.icon("warning", color="warning").classes("text-xl")
                ui.label(reason)


def _show_figures(figures: dict[str, Figure], cluster: Document, samples: Sequence[Document]) -> None:
    used, capacity = cluster["used_bytes"], cluster["capacity_bytes"]
    share = f"{used / capacity:.0%} of {format_size(capacity)}" if capacity else "no node gives memory"
    figures["Memory used"].show(format_size(used), share)
    nodes = cluster["nodes"]
    others = ", ".join(f"{count} {state}" for state, count in nodes.items() if count and state != "live")
    figures["Nodes"].show(str(nodes.get("live", 0)), others or "all live")
    if not samples:
        return
    last = samples[-1]
    first = next(sample for sample in samples if sample["time_s"] >= last["time_s"] - RECENT_S)
    span_s = max(1.0, last["time_s"] - first["time_s"])
    gained = {name: last[name] - first[name] for name in last if isinstance(last[name], int)}
    asked = gained["asked_blocks"]
    found, ceiling = _recent(first, last)
    if found is not None and ceiling is not None:
        figures["Hit ratio"].show(f"{found:.1%}", f"ceiling {ceiling:.1%}: {_advice(ceiling - found)}")
    else:
        words = "in the last minute" if last["asked_blocks"] else "yet"
        figures["Hit ratio"].show("–", f"nothing was asked for {words}")
    figures["Lookups"].show(
        f"{count_text(gained['matches'] / span_s)}/s", f"{count_text(asked / span_s)} blocks/s"
    )
    for name, field in (("Blocks written", "written_blocks"), ("Blocks evicted", "evicted_blocks")):
        figures[name].show(
            f"{count_text(gained[field] / span_s)}/s", f"{count_text(last[field])} since the start"
        )


def _advice(gap: float) -> str:
    return f"memory can add {gap:.1%}" if gap >= 0.01 else "memory adds nothing"


def _recent(first: Document, last: Document) -> tuple[float, float] | tuple[None, None]:
    """(hit ratio, its ceiling) of what was asked for between two samples; none where nothing was. The ceiling is counted
    from the start, so what is left of it here is an estimate."""
    asked = last["asked_blocks"] - first["asked_blocks"]
    if not asked:
        return None, None
    found = (last["hit_blocks"] - first["hit_blocks"]) / asked
    ideal = last["ceiling"] * last["asked_blocks"] - first["ceiling"] * first["asked_blocks"]
    return found, min(1.0, max(found, ideal / asked))


def _column(samples: Sequence[Document], name: str) -> list[float]:
    return [sample[name] for sample in samples]


def _rates(samples: Sequence[Document], name: str) -> Points:
    return [
        (after["time_s"], (after[name] - before[name]) / max(0.1, after["time_s"] - before["time_s"]))
        for before, after in pairwise(samples)
    ]


def _ratios(samples: Sequence[Document]) -> tuple[Points, Points]:
    """Hit ratio and ceiling of the minute before each sample: single ones jump."""
    found: Points = []
    ceilings: Points = []
    first = 0
    for sample in samples:
        while samples[first]["time_s"] < sample["time_s"] - RECENT_S:
            first += 1
        ratio, ceiling = _recent(samples[first], sample)
        found.append((sample["time_s"], ratio))
        ceilings.append((sample["time_s"], ceiling))
    return found, ceilings
