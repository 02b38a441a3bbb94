"""`moonpool completion`: a script that lets a shell complete commands, flags and their values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    """That can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print a completion script: for bash, source <(moonpool completion bash)."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # what --show-completion calls

    from moonpool.store_client.cli.output import write

    write(
        get_completion_script(prog_name="moonpool", complete_var="_MOONPOOL_COMPLETE", shell=shell.value)
        + "\n"
    )
