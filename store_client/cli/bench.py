"""`moonpool bench`: what the pool costs on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson


def bench(
    groups: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GROUP]...", help="Any of lookup, memory, vllm; none: the quick ones."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the hot paths, with contents verified."""
    from moonpool.benchmarks.groups import DEFAULT, run_groups
    from moonpool.benchmarks.results import as_json as document
    from moonpool.store_client.cli.output import print_json, print_table, say

    say(f"running {', '.join(groups or DEFAULT)}; this takes minutes")
    results = run_groups(groups or [])
    if as_json:
        print_json(document(results))
        return
    rows = [
        (
            r.group,
            r.case,
            r.subject,
            f"{r.median:.4g}",
            f"{r.p99:.4g}",
            r.unit,
            r.samples,
            "yes" if r.verified else "",
        )
        for r in results
    ]
    columns = ("group", "case", "subject", "median", "p99", "unit", "samples", "verified")
    print_table("Benchmarks", columns, rows)
