"""Results as people read them: one row a case and subject. The rest is in the JSON and on the page."""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.benchmarks.results import Result

COLUMNS = ("case", "subject", "median", "spread", "unit", "/mooncake", "/limit", "ok")


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Cells of the table, in the order of COLUMNS."""
    return [
        (
            result.case,
            result.subject,
            number(result.median),
            spread(result),
            result.unit,
            times(result.ratio_to_mooncake),
            times(result.ratio_to_limit),
            "yes" if result.verified else "NO",
        )
        for result in results
    ]


def spread(result: Result) -> str:
    """Half the distance between the quartiles, in percent of the median."""
    if result.low is None or result.high is None or not result.median:
        return ""
    return f"±{50 * (result.high - result.low) / result.median:.0f}%"


def number(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def times(ratio: float | None) -> str:
    """A ratio, empty where nothing was compared."""
    return "" if ratio is None else f"{number(ratio)}x"
