"""`moonpool demo`: two vLLM engines that share a pool."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson

CACHE_DEFAULT = Path("~/.cache/moonpool")


def demo(
    as_json: AsJson = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep the pool and the engines up until Ctrl-C.")
    ] = False,
    logs: Annotated[
        Path | None, typer.Option(help="Keep the output of pool and engines in this folder.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where the model is kept.")] = CACHE_DEFAULT,
) -> None:
    """Run two vLLM engines that share a pool, and compare them with one that does not."""
    from moonpool.connector.demo.rows import COLUMNS, as_table, verdict
    from moonpool.connector.demo.rows import as_json as document
    from moonpool.connector.demo.run import converse, staged
    from moonpool.store_client.cli.failures import FAILED, OK
    from moonpool.store_client.cli.output import print_json, print_table, say
    from moonpool.store_client.cli.serve import stop_signals

    # SIGTERM unwinds as an exit does, so that the engines end with us.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(FAILED))
    with staged(cache.expanduser(), logs, say) as stage:
        rows = converse(stage, say)
        if as_json:
            print_json(document(rows))
        else:
            print_table("Two engines, one pool", COLUMNS, as_table(rows))
        if hold:
            if stage.http:
                say(f"the dashboard stays at {stage.http}/ui, its REST interface at {stage.http}/api/v1")
            say(
                f"the pool stays at {stage.master}; try: moonpool status --master {stage.master}    stop: Ctrl-C"
            )
            with stop_signals() as stopping:
                stopping.wait()
    complaint = verdict(rows)
    if complaint:
        say(complaint)
    raise typer.Exit(FAILED if complaint else OK)
