"""`moonpool drain`: empty a node before it is taken away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from moonpool.store_client.cli.options import AsJson, Assignments, ConfigFile, Master, open_pool

if TYPE_CHECKING:
    from moonpool.schemas.messages import DrainProgress
    from moonpool.store_client import StoreClient
    from moonpool.store_client.cli.output import Progress

POLL_S = 0.5
STUCK_S = 10.0
"""Where nothing has moved for so long, and all that is left finds no room, waiting on is of no use."""


def drain(
    node: Annotated[str, typer.Argument(help="Its name.")],
    cancel: Annotated[bool, typer.Option("--cancel", help="Let it take new puts again.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until it is empty, or what is left finds no room elsewhere.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait at most.")] = 3600.0,
    master: Master = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Place no new puts on a node, and move what it holds to others as far as they have room. It serves the rest on."""
    from moonpool.store_client.cli.output import print_json, progress, write

    with (
        open_pool(master=master, config=config, assignments=assignments) as client,
        progress("asking the master") as shown,
    ):
        changed = client.admin.drain(node, on=not cancel)
        found = None if cancel else _look(client, node)
        if wait and found is not None:
            found = _wait(client, found, shown, timeout)
    if as_json:
        numbers = {name: getattr(found, name) for name in NUMBERS} if found is not None else {}
        print_json({"node": node, "draining": not cancel, "changed": changed, **numbers})
        return
    state = "takes new puts again" if cancel else "is draining: it gets no new puts"
    write(f"node {node} {state}{'' if changed else ' (it was so already)'}\n")
    if found is not None:
        write(f"{progress_text(found)}\n")


NUMBERS = ("moved", "moved_bytes", "left", "left_bytes", "no_space")


def progress_text(found: DrainProgress) -> str:
    """One line for people."""
    from moonpool.schemas.units import format_size

    without = f", {found.no_space:,} of them found no room elsewhere" if found.no_space else ""
    moved = f"{found.moved:,} copies ({format_size(found.moved_bytes)}) moved"
    return f"{moved}, {found.left:,} ({format_size(found.left_bytes)}) left{without}"


def _look(client: StoreClient, node: str) -> DrainProgress | None:
    return next((one for one in client.admin.drains() if one.node == node), None)


def _wait(client: StoreClient, found: DrainProgress, shown: Progress, timeout_s: float) -> DrainProgress:
    """Until nothing is left. Raises NoSpace, DeadlineExceeded, and NotFound where the node is gone."""
    from moonpool.schemas.errors import DeadlineExceeded, NoSpace, NotFound

    began_s = moved_s = time.monotonic()
    while found.left:
        shown.what = f"node {found.node}: {progress_text(found)}"
        time.sleep(POLL_S)
        now_s, before = time.monotonic(), found
        again = _look(client, found.node)
        if again is None:
            raise NotFound(key=f"node {found.node!r}")
        found = again
        moved_s = now_s if found.left != before.left else moved_s
        if found.no_space >= found.left > 0 and now_s - moved_s > STUCK_S:
            raise NoSpace(wanted_bytes=found.left_bytes, where="the other nodes")
        if found.left and now_s - began_s > timeout_s:
            raise DeadlineExceeded(peer="the pool", what=f"draining {found.node}", timeout_s=timeout_s)
    return found
