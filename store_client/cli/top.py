"""`moonpool top`: the pool, live."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.store_client.cli.options import AsJson, Assignments, ConfigFile, Master, Tenant, open_pool

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from moonpool.schemas.keyspace import KeyspaceSpec
    from moonpool.schemas.messages import KeyspaceFacts, NodeEntry
    from moonpool.store_client import StoreClient
    from moonpool.store_client.cli.top_view import Facts, Sample

NODES_MAX = 64
KEYSPACES_MAX = 32
"""Asked at each look; what is beyond them is not shown."""

NODE_TIMEOUT_S = 1.0
AT_ONCE = 16
HEAD_LINES = 12
"""Of the screen: the summary, and the titles and heads of both tables."""


def top(
    interval: Annotated[float, typer.Option(min=0.2, max=3600.0, help="Seconds between two looks.")] = 2.0,
    once: Annotated[
        bool,
        typer.Option("--once", help="Look twice, an interval apart, print, and end. So it is in a pipe."),
    ] = False,
    master: Master = None,
    tenant: Tenant = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show capacity, hits, traffic, evictions, nodes and keyspaces as they change; q quits. With --json a line a look."""
    live = sys.stdout.isatty() and sys.stdin.isatty() and not once and not as_json
    with (
        open_pool(master=master, tenant=tenant, config=config, assignments=assignments) as client,
        ThreadPoolExecutor(AT_ONCE, thread_name_prefix="top") as threads,
        suppress(KeyboardInterrupt),  # the usual way out where no key is read
    ):
        before = look(client, threads)
        if live:
            _live(client, threads, before, interval)
        else:
            _print(client, threads, before, interval, as_json, forever=as_json and not once)


def look(client: StoreClient, threads: ThreadPoolExecutor) -> Sample:
    """Asks the masters and the nodes. Raises Unreachable where no master answers."""
    from moonpool.store_client.cli.top_view import Sample

    cluster = client.cluster_map()
    entries = cluster.nodes[:NODES_MAX]
    facts = threads.map(lambda entry: _node(client, entry), entries)
    specs = client.list_keyspaces()[:KEYSPACES_MAX]
    keyspaces = tuple((spec, _keyspace(client, spec)) for spec in specs)
    counters = client.status()
    nodes = {entry.info.segment: found for entry, found in zip(entries, facts, strict=True) if found}
    return Sample(time.monotonic(), cluster, counters, nodes, keyspaces)


def _node(client: StoreClient, entry: NodeEntry) -> Facts | None:
    """None: it doesn't answer, which the table says."""
    from moonpool.schemas.errors import MoonpoolError

    try:
        return client.admin.node_status(entry.info, timeout_s=NODE_TIMEOUT_S)
    except MoonpoolError:
        return None


def _keyspace(client: StoreClient, spec: KeyspaceSpec) -> KeyspaceFacts:
    from moonpool.schemas.errors import KeyspaceUnknown
    from moonpool.schemas.messages import KeyspaceFacts

    try:
        return client.admin.describe_keyspace(spec.digest())
    except KeyspaceUnknown:  # it was empty and made room for another
        return KeyspaceFacts(0, 0, 0, 0)


def _print(
    client: StoreClient,
    threads: ThreadPoolExecutor,
    before: Sample,
    interval_s: float,
    as_json: bool,
    forever: bool,
) -> None:
    from moonpool.store_client.cli.output import print_json, print_lines, progress
    from moonpool.store_client.cli.top_view import document

    again = True
    while again:
        with progress(f"looking again in {interval_s:g} s"):
            time.sleep(interval_s)
            now = look(client, threads)
        found = document(now, before)
        if as_json:
            print_json(found)
        else:
            print_lines(screen(found, lines=None))
        before = now
        again = forever


def screen(found: dict[str, Any], lines: int | None) -> list[RenderableType]:
    """The whole picture; on a screen of so many lines as many rows as there is room for."""
    from moonpool.store_client.cli.output import table_of
    from moonpool.store_client.cli.top_view import (
        KEYSPACE_COLUMNS,
        NODE_COLUMNS,
        keyspace_rows,
        node_rows,
        summary,
    )

    nodes, keyspaces = node_rows(found), keyspace_rows(found)
    if lines is not None:
        room = max(2, lines - HEAD_LINES)
        nodes = nodes[: max(1, room - min(len(keyspaces), room // 2))]
        keyspaces = keyspaces[: max(1, room - len(nodes))]
    return [
        "\n".join(f"{name:<9}{text}" for name, text in summary(found)),
        table_of("Nodes", NODE_COLUMNS, nodes),
        table_of("Keyspaces", KEYSPACE_COLUMNS, keyspaces),
    ]


def _live(client: StoreClient, threads: ThreadPoolExecutor, before: Sample, interval_s: float) -> None:
    from rich.console import Console, Group

    from moonpool.schemas.errors import Unreachable
    from moonpool.store_client.cli.top_view import document

    console = Console()
    with _keys(), console.screen() as shown:
        shown.update("looking ... (q quits)")
        while not _quit_within(interval_s):
            try:
                now = look(client, threads)
            except Unreachable as error:
                shown.update(f"no answer, trying on (q quits): {error}")
                continue
            head = f"moonpool {', '.join(now.cluster.masters)}    {time.strftime('%H:%M:%S')}    q quits"
            shown.update(Group(head, *screen(document(now, before), _lines(console))))
            before = now


def _lines(console: Console) -> int:
    return console.size.height


@contextmanager
def _keys() -> Iterator[None]:
    """Single keys, not lines, until the end: whatever happens, the terminal is as it was."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _quit_within(seconds: float) -> bool:
    """Waits; whether q (or the end of input) came meanwhile."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        if not select.select([sys.stdin], [], [], left_s)[0]:
            return False
        if os.read(sys.stdin.fileno(), 1) in (b"q", b"Q", b""):
            return True
    return False
