"""`moonpool config show` and `moonpool config check`."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson, ConfigFile

app = typer.Typer(help="Look at settings.", no_args_is_help=True)


class SettingsKind(StrEnum):
    """Whose settings."""

    MASTER = "master"
    NODE = "node"
    CLIENT = "client"
    CONNECTOR = "connector"


@app.command()
def show(
    kind: Annotated[SettingsKind, typer.Argument(help="Whose settings.")],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show every setting with its value and where the value came from."""
    from moonpool.schemas.config_load import KINDS, load
    from moonpool.store_client.cli.output import print_json, print_table

    model = KINDS[kind.value]
    found = load(model, file=config, environment=os.environ)
    rows = []
    for name, field in model.model_fields.items():
        value = getattr(found.settings, name)
        shown = value if field.repr or not value else "(hidden)"
        rows.append((name, shown, found.origins[name], field.description or ""))
    if as_json:
        print_json({name: {"value": value, "origin": origin} for name, value, origin, _ in rows})
    else:
        print_table(f"Settings of the {kind.value}", ("setting", "value", "from", "what it is"), rows)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The file.")],
    mooncake: Annotated[
        bool, typer.Option("--mooncake", help="It is a file for MOONCAKE_CONFIG_PATH.")
    ] = False,
) -> None:
    """Check a settings file; exit code 2 and the first mistake where there is one."""
    from moonpool.schemas.config_load import KINDS, load

    if mooncake:
        from moonpool.schemas.mooncake_config import load_mooncake_config

        settings = load_mooncake_config(file)
        print(f"{file}: good; the master is {settings.master}")
        return
    for model in KINDS.values():
        load(model, file=file)
    print(f"{file}: good for {', '.join(KINDS)}")
