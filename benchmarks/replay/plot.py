"""One page that shows hit ratios by pool size: plain SVG, no script, nothing loaded."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log2

from moonpool.benchmarks.replay.replay import Row

WIDTH, HEIGHT, MARGIN = 640, 360, 56
COLOURS = ("#c0392b", "#2c6fbb", "#7f8c8d", "#1e8449")


def page(rows: Sequence[Row]) -> str:
    """HTML with one plot a trace, and its numbers."""
    traces = dict.fromkeys(row.trace for row in rows)
    plots = "\n".join(_plot(trace, [row for row in rows if row.trace == trace]) for trace in traces)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Moonpool: prefix hit ratio</title>'
        "<style>body{font:14px sans-serif;margin:2em}td,th{padding:2px 12px;text-align:right}</style>"
        f"<h1>Prefix hit ratio in blocks</h1>\n{plots}\n</html>\n"
    )


def _plot(trace: str, rows: Sequence[Row]) -> str:
    capacities = sorted({row.capacity_blocks for row in rows})
    policies = list(dict.fromkeys(row.policy for row in rows))
    ratios = {(row.policy, row.capacity_blocks): row.prefix_hit_ratio for row in rows}
    top = max(ratios.values()) or 1.0
    span = log2(capacities[-1] / capacities[0]) or 1.0

    def across(capacity: int) -> float:
        return MARGIN + log2(capacity / capacities[0]) / span * (WIDTH - 2 * MARGIN)

    def down(ratio: float) -> float:
        return HEIGHT - MARGIN - ratio / top * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<text x="{across(capacity):.0f}" y="{HEIGHT - MARGIN + 20}" text-anchor="middle">{capacity:,}</text>'
        for capacity in capacities
    ]
    for step in range(5):
        ratio = top * step / 4
        parts.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{down(ratio):.0f}" y2="{down(ratio):.0f}" '
            f'stroke="#ddd"/><text x="{MARGIN - 6}" y="{down(ratio) + 4:.0f}" text-anchor="end">{ratio:.3f}</text>'
        )
    for number, policy in enumerate(policies):
        colour = COLOURS[number % len(COLOURS)]
        points = [(across(c), down(ratios[policy, c])) for c in capacities]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(f'<text x="{MARGIN + 110 * number}" y="20" fill="{colour}">{escape(policy)}</text>')
    cells = "".join(
        f"<tr><td>{capacity:,}</td>"
        + "".join(f"<td>{ratios[policy, capacity]:.4f}</td>" for policy in policies)
        + "</tr>"
        for capacity in capacities
    )
    heads = "".join(f"<th>{escape(policy)}</th>" for policy in policies)
    return (
        f'<h2>{escape(trace)}</h2><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">'
        f"{''.join(parts)}</svg><table><tr><th>blocks</th>{heads}</tr>{cells}</table>"
    )
