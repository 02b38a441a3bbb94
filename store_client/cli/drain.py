"""`moonpool drain`: empty a node before it is taken away."""

from __future__ import annotations

from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson, Assignments, ConfigFile, Master, open_pool


def drain(
    node: Annotated[str, typer.Argument(help="Its name.")],
    cancel: Annotated[bool, typer.Option("--cancel", help="Let it take new puts again.")] = False,
    master: Master = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Place no new puts on a node. It serves what it holds, which stays where it is and ages."""
    from moonpool.store_client.cli.output import print_json, progress, write

    with (
        open_pool(master=master, config=config, assignments=assignments) as client,
        progress("asking the master"),
    ):
        changed = client.admin.drain(node, on=not cancel)
    if as_json:
        print_json({"node": node, "draining": not cancel, "changed": changed})
        return
    state = "takes new puts again" if cancel else "is draining: it gets no new puts, and serves what it holds"
    write(f"node {node} {state}{'' if changed else ' (it was so already)'}\n")
