"""Lines over time, in the colours of both light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nicegui import ui

Options = dict[str, Any]
SOFT = "#8b93ab"
STEPS = 5
"""Of a scale of bytes, at most: they are powers of two, as their units are."""

COLOURS = ("#5b6cf0", "#e0912f", "#2ba58b", "#c95b8a")


class Line:
    """One curve of a chart. `dashed`: a bound rather than a measurement. `filled`: with its area."""

    def __init__(self, name: str, *, dashed: bool = False, filled: bool = False) -> None:
        self.name, self.dashed, self.filled = name, dashed, filled

    def options(self, colour: str) -> Options:
        """As ECharts wants it."""
        options: Options = {
            "name": self.name,
            "type": "line",
            "showSymbol": False,
            "color": colour,
            "lineStyle": {"width": 2, "type": "dashed" if self.dashed else "solid"},
            "data": [],
        }
        if self.filled:
            options["areaStyle"] = {"opacity": 0.15}
        return options


class Chart:
    """A card with lines over the last half hour. `format`: a JavaScript function from a value to its text."""

    def __init__(
        self, title: str, lines: Sequence[Line], format_value: str, top: float | None = None
    ) -> None:
        options: Options = {
            "animation": False,
            "grid": {"left": 8, "right": 24, "top": 34, "bottom": 4, "containLabel": True},
            "legend": {
                "top": 0,
                "left": 0,
                "icon": "roundRect",
                "itemWidth": 12,
                "itemHeight": 4,
                "textStyle": {"color": SOFT},
            },
            "tooltip": {"trigger": "axis", ":valueFormatter": format_value},
            "xAxis": {
                "type": "time",
                "minInterval": 60_000,
                "axisLabel": {"color": SOFT, "hideOverlap": True, "formatter": "{HH}:{mm}"},
                "splitLine": {"show": False},
            },
            "yAxis": {
                "type": "value",
                "min": 0,
                "axisLabel": {"color": SOFT, ":formatter": format_value},
                "splitLine": {"lineStyle": {"color": SOFT, "opacity": 0.18}},
            },
            "series": [line.options(COLOURS[n]) for n, line in enumerate(lines)],
        }
        self._binary = format_value == BYTES
        if top is not None:
            options["yAxis"]["max"] = top
        with ui.card().tight().classes("mp-card w-full"):
            ui.label(title).classes("mp-label")
            self._chart = ui.echart(options).classes("w-full").style("height: 210px")

    def show(self, *curves: Sequence[tuple[float, float | None]]) -> None:
        """New points of every line: (time in s, value)."""
        for series, points in zip(self._chart.options["series"], curves, strict=True):
            series["data"] = [[time_s * 1000, value] for time_s, value in points]
        if self._binary:
            top = max((value or 0.0 for points in curves for _, value in points), default=0.0)
            step = 2.0 ** max(0, math.ceil(math.log2(max(1.0, top) / STEPS)))
            self._chart.options["yAxis"] |= {"interval": step, "max": step * math.ceil(top / step)}
        self._chart.update()


PERCENT = "(value) => value == null ? '–' : Math.round(value * 1000) / 10 + ' %'"
RATE = "(value) => value == null ? '–' : value >= 1e6 ? (value / 1e6).toFixed(1) + ' M' : value >= 1e4 ? (value / 1e3).toFixed(0) + ' k' : Math.round(value * 10) / 10"
BYTES = "(value) => { if (value == null) return '–'; let n = 0; while (value >= 1024 && n < 5) { value /= 1024; n++ } return value.toFixed(n ? 1 : 0) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][n] }"
