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
    kind: Annotated[SettingsKind | None, typer.Argument(help="Whose settings; none: all kinds.")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show every setting with its value and where the value came from. Secrets are not shown."""
    from moonpool.schemas.config_load import KINDS
    from moonpool.store_client.cli.output import print_json, print_table

    kinds = [kind.value] if kind else list(KINDS)
    found = {name: _settings(name, config) for name in kinds}
    if as_json:
        documents = {
            name: {setting: {"value": value, "origin": origin} for setting, value, origin, _ in rows}
            for name, rows in found.items()
        }
        print_json(documents[kind.value] if kind else documents)
        return
    for name, rows in found.items():
        print_table(f"Settings of the {name}", ("setting", "value", "from", "what it is"), rows)


def _settings(kind: str, config: Path | None) -> list[tuple[str, object, str, str]]:
    """(name, value, origin, description) of each."""
    from moonpool.schemas.config_load import KINDS, load

    model = KINDS[kind]
    found = load(model, file=config, environment=os.environ)
    rows = []
    for name, field in model.model_fields.items():
        value = getattr(found.settings, name)
        shown = value if field.repr or not value else "(hidden)"
        rows.append((name, shown, found.origins[name], field.description or ""))
    return rows


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The file.")],
    mooncake: Annotated[
        bool, typer.Option("--mooncake", help="It is a file for MOONCAKE_CONFIG_PATH.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a settings file; exit code 2 and the first mistake where there is one."""
    from moonpool.schemas.errors import ConfigError
    from moonpool.store_client.cli.failures import USAGE
    from moonpool.store_client.cli.output import print_json, write

    try:
        praise = _check_mooncake(file) if mooncake else _check(file)
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"file": str(file), "good": False, "field": error.facts["field"], "problem": str(error)})
        raise typer.Exit(USAGE) from None
    if as_json:
        print_json({"file": str(file), "good": True})
    else:
        write(f"{file}: good{praise}\n")


def _check(file: Path) -> str:
    """Raises ConfigError."""
    from moonpool.schemas.config_load import KINDS, load

    for model in KINDS.values():
        load(model, file=file)
    return f" for {', '.join(KINDS)}"


def _check_mooncake(file: Path) -> str:
    """Raises ConfigError."""
    from moonpool.schemas.mooncake_config import load_mooncake_config

    return f"; the master is {load_mooncake_config(file).master}"
