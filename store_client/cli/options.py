"""Flags that several commands share, and how flags, file and environment become settings."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from moonpool.schemas.config import Settings
    from moonpool.schemas.config_load import Loaded
    from moonpool.store_client import StoreClient

    SettingsT = TypeVar("SettingsT", bound=Settings)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Master = Annotated[str | None, typer.Option(help="The master's host:port.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", envvar="MOONPOOL_CONFIG", help="Settings file, JSON or TOML.")
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated.")
]
Tenant = Annotated[str | None, typer.Option(help="Whose keyspaces and objects.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="Lines of one page.")]
After = Annotated[str, typer.Option(help="Go on behind this: the page before names it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]


def loaded(
    model: type[SettingsT],
    *,
    file: Path | None,
    flags: Mapping[str, object],
    assignments: Sequence[str] | None = None,
) -> Loaded[SettingsT]:
    """Settings of a command. A flag wins over --set. Raises ConfigError."""
    from moonpool.schemas.config_load import load

    given = {name: value for name, value in flags.items() if value is not None}
    return load(model, file=file, environment=os.environ, flags=parsed(assignments or ()) | given)


def open_pool(
    *,
    master: str | None,
    tenant: str | None = None,
    config: Path | None,
    assignments: Sequence[str] | None,
) -> StoreClient:
    """A client for tools: it contributes no memory, whatever the settings say. Raises ConfigError."""
    from moonpool.schemas.config import ClientSettings
    from moonpool.store_client import StoreClient

    flags = {"master": master, "tenant": tenant}
    settings = loaded(ClientSettings, file=config, flags=flags, assignments=assignments).settings
    return StoreClient(settings.model_copy(update={"segment_size": 0}))


def parsed(assignments: Sequence[str]) -> dict[str, object]:
    """The values of --set NAME=VALUE. Raises ConfigError."""
    from moonpool.schemas.config_load import COMMAND_LINE
    from moonpool.schemas.errors import ConfigError

    values: dict[str, object] = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(source=COMMAND_LINE, field="--set", problem=f"is {text!r}; write NAME=VALUE")
        values[name.strip().replace("-", "_")] = value
    return values


def by_kind(assignments: Sequence[str], kinds: Mapping[str, type[Settings]]) -> dict[str, list[str]]:
    """Those of --set [KIND.]NAME=VALUE for each kind. Without a kind they are for all that have such a setting; for all,
    which then say so, where none has."""
    found: dict[str, list[str]] = {kind: [] for kind in kinds}
    for text in assignments:
        name = text.partition("=")[0].strip()
        kind, dot, _ = name.partition(".")
        if dot and kind in kinds:
            found[kind].append(text.strip().removeprefix(f"{kind}."))
            continue
        field = name.replace("-", "_")
        having = [kind for kind, model in kinds.items() if field in model.model_fields] or list(kinds)
        for kind in having:
            found[kind].append(text)
    return found


def log_to_stderr(verbose: bool) -> None:
    """Log lines of a server process."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def check_writable(flag: str, path: Path | None) -> None:
    """For a file that is written at the end of long work. Raises InvalidParams where that could not be."""
    from moonpool.schemas.errors import InvalidParams

    if path is None:
        return
    target = path if path.exists() else path.parent
    if path.is_dir() or not (target.exists() and os.access(target, os.W_OK)):
        raise InvalidParams(field=flag, value=str(path), allowed="a file that can be written")


def numbers(flag: str, text: str) -> list[int]:
    """The value of a flag that takes numbers of 1 and more. Raises InvalidParams."""
    from moonpool.schemas.errors import InvalidParams

    try:
        values = [int(number) for number in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise InvalidParams(field=flag, value=text, allowed="numbers of 1 and more, by commas")
    return values
