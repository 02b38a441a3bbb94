"""`moonpool master`, `moonpool node` and `moonpool serve`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from moonpool.store_client.cli.options import (
    AsJson,
    Assignments,
    ConfigFile,
    Master,
    Verbose,
    by_kind,
    loaded,
    log_to_stderr,
)

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 picks a free one.")]
HttpPort = Annotated[int | None, typer.Option(help="Port of the REST interface and of /metrics; 0: none.")]
Store = Annotated[
    str | None,
    typer.Option(
        help="Where pins, tenants and keyspaces are kept: memory, file:PATH or etcd://HOST:PORT;HOST:PORT."
    ),
]
Size = Annotated[str | None, typer.Option(help="DRAM to contribute, for example 4GB.")]
Name = Annotated[str | None, typer.Option(help="Names the node and the segment that it adopts again.")]
SegmentDir = Annotated[str | None, typer.Option(help="Where the segment file lies: tmpfs or hugetlbfs.")]

Advertise = Annotated[str | None, typer.Option(help="Address by which other hosts reach this one.")]


def master(
    host: Host = None,
    port: Port = None,
    http_port: HttpPort = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Write the address here, once it listens: with port 0 it is not known before."),
    ] = None,
    store: Store = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    verbose: Verbose = False,
) -> None:
    """Run a master: it knows which block is where, and holds no payload."""
    from moonpool.schemas.config import MasterSettings

    flags = {"host": host, "port": port, "http_port": http_port, "store": store}
    found = loaded(MasterSettings, file=config, flags=flags, assignments=assignments)
    log_to_stderr(verbose)
    from moonpool.master.app import run_master

    run_master(found.settings, None if ready_file is None else partial(_say_ready, ready_file), found.origins)


def _say_ready(file: Path, address: str) -> None:
    """Whole, or not at all: somebody is waiting for it."""
    partly = file.with_name(f"{file.name}.partial")
    partly.write_text(address)
    partly.replace(file)


def node(
    master: Master = None,
    name: Name = None,
    size: Size = None,
    host: Host = None,
    port: Port = None,
    advertise: Advertise = None,
    segment_dir: SegmentDir = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    verbose: Verbose = False,
) -> None:
    """Run a node: it contributes this host's DRAM to the pool."""
    from moonpool.schemas.config import NodeSettings

    flags = {
        "master": master,
        "name": name,
        "size": size,
        "host": host,
        "port": port,
        "advertise": advertise,
        "segment_dir": segment_dir,
    }
    settings = loaded(NodeSettings, file=config, flags=flags, assignments=assignments).settings
    log_to_stderr(verbose)
    from moonpool.store_client.node.app import run_node

    run_node(settings)


def serve(
    size: Size = None,
    port: Annotated[int | None, typer.Option(help="The master's port; 0 picks a free one.")] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the REST interface and of /metrics; 0: none. Not given: 50080, or a free one."
        ),
    ] = None,
    host: Host = None,
    name: Name = None,
    segment_dir: SegmentDir = None,
    store: Store = None,
    config: ConfigFile = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[KIND.]NAME=VALUE",
            help="Any other setting; master. or node. before it: of that one alone. May be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run a master and a node on this machine, until Ctrl-C."""
    from moonpool.schemas.config import MasterSettings, NodeSettings
    from moonpool.store_client.cli.serve import Plan, run_serve

    master_flags = {"host": host, "port": port, "http_port": http_port, "store": store}
    node_flags = {"size": size, "host": host, "name": name, "segment_dir": segment_dir}
    sets = by_kind(assignments or (), {"master": MasterSettings, "node": NodeSettings})
    master = loaded(MasterSettings, file=config, flags=master_flags, assignments=sets["master"])
    plan = Plan(
        master.settings,
        # The node's own port stays free: MOONPOOL_PORT and a file's `port` mean the master's.
        loaded(NodeSettings, file=config, flags=node_flags | {"port": 0}, assignments=sets["node"]).settings,
        verbose,
        any_http_port=master.origins["http_port"] == "default",
    )
    raise typer.Exit(run_serve(plan, as_json=as_json))
