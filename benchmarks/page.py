"""A page of plots: one bar a case that shows how many times as good as Mooncake, and the numbers. One file, light and
dark, nothing loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from math import log10
from typing import Any

WIDTH, NAME_WIDTH, NUMBER_WIDTH, ROW = 860, 250, 90, 20
RATIO_MIN, RATIO_MAX = 0.1, 1000.0

STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --faint: #d5dbe1; --good: #1f7a8c; --bad: #b5483a;
  --limit: #c58b1b }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dbe4ec; --paper: #12181f; --faint: #33404d; --good: #4fb3c6; --bad: #e07a6a; --limit: #e0b04a } }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 900px;
  margin: 2em auto; padding: 0 1em }
svg { width: 100%; height: auto } text { fill: var(--ink); font: 12px system-ui, sans-serif }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } td, th { padding: 1px 10px; text-align: right }
td:first-child, th:first-child { text-align: left } tr { border-bottom: 1px solid var(--faint) }
details { margin-bottom: 2em } .table { overflow-x: auto }
"""


def page(document: Mapping[str, Any]) -> str:
    """HTML of what `--json` prints."""
    machine = document["machine"]
    facts = ", ".join(f"{escape(str(name))}: {escape(str(value))}" for name, value in machine.items())
    sections = [
        _section(group, list(cases))
        for group, cases in groupby(document["cases"], key=lambda case: str(case["group"]))
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Moonpool: benchmarks</title>'
        f"<style>{STYLE}</style><h1>Moonpool beside Mooncake Store</h1><p>{facts}</p>"
        "<p>Bars: how many times as good as Mooncake Store in the same run, on a logarithmic scale. "
        "Marks: the share of what the machine itself can do.</p>" + "\n".join(sections) + "</html>\n"
    )


def _section(group: str, cases: Sequence[Mapping[str, Any]]) -> str:
    compared = [case for case in cases if case["subject"] == "moonpool" and case["ratio_to_mooncake"]]
    plot = _plot(compared) if compared else ""
    rows = "".join(
        f"<tr><td>{escape(case['case'])}</td><td>{case['subject']}</td><td>{case['median']:,.4g}</td>"
        f"<td>{case['p99']:,.4g}</td><td>{escape(case['unit'])}</td><td>{case['samples']}</td>"
        f"<td>{_times(case['ratio_to_mooncake'])}</td><td>{_times(case['ratio_to_limit'])}</td></tr>"
        for case in cases
    )
    heads = ("case", "subject", "median", "p99", "unit", "samples", "/ Mooncake", "/ limit")
    return (
        f"<h2>{escape(group)}</h2>{plot}<details><summary>Numbers</summary><div class=table><table>"
        f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table></div></details>"
    )


def _plot(cases: Sequence[Mapping[str, Any]]) -> str:
    height = ROW * (len(cases) + 2)
    parts = []
    for ratio in (0.1, 1.0, 10.0, 100.0, 1000.0):
        x = _across(ratio)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{ROW}" y2="{height}" stroke="var(--faint)"/>'
            f'<text x="{x:.1f}" y="14" text-anchor="middle">{ratio:g}×</text>'
        )
    for number, case in enumerate(cases):
        y = ROW * (number + 1) + 4
        ratio = float(case["ratio_to_mooncake"])
        left, right = sorted((_across(1.0), _across(ratio)))
        colour = "var(--good)" if ratio >= 1 else "var(--bad)"
        parts.append(
            f'<text x="{NAME_WIDTH - 8}" y="{y + 11}" text-anchor="end">{escape(case["case"])}</text>'
            f'<rect x="{left:.1f}" y="{y}" width="{max(1.0, right - left):.1f}" height="14" fill="{colour}"/>'
            f'<text x="{WIDTH - NUMBER_WIDTH + 8}" y="{y + 11}">{_times(ratio)}</text>'
        )
        if case["ratio_to_limit"]:
            x = _across(float(case["ratio_to_limit"]))
            parts.append(f'<circle cx="{x:.1f}" cy="{y + 7}" r="3" fill="var(--limit)"/>')
    return f'<svg viewBox="0 0 {WIDTH} {height + 6}" role="img">{"".join(parts)}</svg>'


def _across(ratio: float) -> float:
    """Where a ratio lies on the logarithmic axis."""
    inside = min(max(ratio, RATIO_MIN), RATIO_MAX)
    share = log10(inside / RATIO_MIN) / log10(RATIO_MAX / RATIO_MIN)
    return NAME_WIDTH + share * (WIDTH - NAME_WIDTH - NUMBER_WIDTH)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}×"
