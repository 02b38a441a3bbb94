"""The table of docs/benchmarks.md from what `moonpool bench --json` printed: `bench_table.py FILE... > part.md`.

One row a case; Moonpool, Mooncake Store and the machine's limit beside each other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADS = ("case", "unit", "Moonpool", "p99", "Mooncake", "Redis", "limit", "/ Mooncake", "/ limit")


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Markdown: the machine, then one table a group."""
    yield "Machine: " + ", ".join(f"{name} {value}" for name, value in document["machine"].items()) + "."
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    groups: dict[str, list[str]] = {}
    for case in document["cases"]:
        name = case["case"]
        cases.setdefault(name, {})[case["subject"]] = case
        if name not in groups.setdefault(case["group"], []):
            groups[case["group"]].append(name)
    for group, names in groups.items():
        yield f"\n### {group}\n"
        yield "| " + " | ".join(HEADS) + " |"
        yield "| --- | --- |" + " ---: |" * (len(HEADS) - 2)
        for name in names:
            if "moonpool" in cases[name]:
                yield _row(name, cases[name])


def _row(name: str, by_subject: dict[str, dict[str, Any]]) -> str:
    ours = by_subject["moonpool"]
    medians = [
        _number(by_subject[s]["median"]) if s in by_subject else "" for s in ("mooncake", "redis", "limit")
    ]
    ratios = [_times(ours[key]) for key in ("ratio_to_mooncake", "ratio_to_limit")]
    cells = [f"`{name}`", ours["unit"], _number(ours["median"]), _number(ours["p99"]), *medians, *ratios]
    return "| " + " | ".join(cells) + " |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{_number(ratio)}x"


def main() -> None:
    """Prints the Markdown."""
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    whole = {**documents[0], "cases": [case for document in documents for case in document["cases"]]}
    print("\n".join(lines(whole)))


if __name__ == "__main__":
    main()
