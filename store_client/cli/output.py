"""How commands speak: tables and JSON on stdout, progress and errors on stderr, colours only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

PLAIN_WIDTH = 160
"""Columns where the output is no terminal: a pipe shouldn't get lines wrapped for one."""


def print_json(document: Any) -> None:
    """One line of JSON on stdout, at once."""
    print(json.dumps(document), flush=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout. Cells are shown as they are: no markup is read in them."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)


def say(line: str) -> None:
    """Progress, for anything that takes over a second."""
    print(line, file=sys.stderr, flush=True)
