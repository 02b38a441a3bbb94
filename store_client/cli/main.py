"""The `moonpool` command. Each command imports what it needs when it runs, so that --help is quick."""

from __future__ import annotations

import os
import sys

import typer

from moonpool.store_client.cli import (
    bench,
    completion,
    config,
    demo,
    doctor,
    drain,
    events_key,
    inspect,
    ls,
    pin,
    replay,
    replicas,
    rm,
    servers,
    simulate,
    status,
    tenant,
    top,
    version,
    warm,
)

app = typer.Typer(
    name="moonpool",
    help="A distributed pool for LLM KV cache.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    servers.serve,
    servers.master,
    servers.node,
    status.status,
    top.top,
    ls.ls,
    inspect.inspect,
    pin.pin,
    pin.unpin,
    rm.rm,
    drain.drain,
    replicas.replicas,
    events_key.events_key,
    warm.warm,
    doctor.doctor,
    demo.demo,
    bench.bench,
    replay.replay,
    simulate.simulate,
    completion.completion,
    version.version,
):
    app.command()(command)
app.add_typer(config.app, name="config")
app.add_typer(tenant.app, name="tenant")


def main() -> None:
    """Entry point: an error of ours is a sentence and an exit code, never a traceback."""
    from moonpool.schemas.errors import MoonpoolError
    from moonpool.store_client.cli.failures import explain

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us: what is said is lost, and that is all
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        app()
    except MoonpoolError as error:
        sys.exit(explain(error))


if __name__ == "__main__":
    main()
