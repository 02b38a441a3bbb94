"""`moonpool bench`: what the pool costs on this machine, beside Mooncake Store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson


def bench(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GROUP]...",
            help="Any of lookup, exist, put, get, small, latency, churn, mixed, recovery, memory, takeover, vllm;"
            " none: all but vllm.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, few samples: to see that it works.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Also 5 million blocks and batches of 512 MiB, with more samples: an hour."
        ),
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots to this file.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write what --json prints to this file too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the hot paths beside Mooncake Store and the machine's limits, with contents verified."""
    from moonpool.benchmarks.groups import run_groups
    from moonpool.benchmarks.page import page
    from moonpool.benchmarks.progress import Progress
    from moonpool.benchmarks.results import as_json as document
    from moonpool.benchmarks.scale import FULL, ORDINARY, QUICK
    from moonpool.benchmarks.table import COLUMNS, rows
    from moonpool.store_client.cli.options import check_writable
    from moonpool.store_client.cli.output import print_json, print_table

    check_writable("--html", html)
    check_writable("--save", save)
    results = run_groups(groups or [], QUICK if quick else FULL if full else ORDINARY, Progress())
    found = document(results)
    if save:
        save.write_text(json.dumps(found))
    if html:
        html.write_text(page(found))
    if as_json:
        print_json(found)
    else:
        print_table("Benchmarks", COLUMNS, rows(results))
