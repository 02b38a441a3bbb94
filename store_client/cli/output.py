"""How commands speak: tables and JSON on stdout, progress and errors on stderr, colours only on a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

PLAIN_WIDTH = 100
"""Columns where no terminal is near."""

WIDTH_MIN = 20
"""In less than this nothing can be shown."""

QUIET_S = 1.0
"""What is done sooner needs no progress."""

SAY_AGAIN_S = 5.0


def print_json(document: Any) -> None:
    """One line of JSON on stdout, at once."""
    write(json.dumps(document) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout, no wider than the terminal."""
    print_lines([table_of(title, columns, rows)])


def table_of(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table. Cells are shown as they are: no markup is read in them."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    heading = Text(printable(title)) if title else None
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    return table


def print_lines(lines: Iterable[RenderableType]) -> None:
    """Anything that rich can show, on stdout, no wider than the terminal."""
    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, force_terminal=sys.stdout.isatty(), width=width(), highlight=False)
    for line in lines:
        console.print(line)
    write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def print_facts(title: str, facts: Mapping[str, object]) -> None:
    """Names and values on stdout, one a line."""
    table = table_of(title, ("", ""), facts.items())
    table.show_header = False
    print_lines([table])


def write(text: str) -> None:
    """To stdout, at once. A reader who has seen enough (`| head`) ends the program: that is no failure."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        raise SystemExit(0) from None
    except OSError as error:  # a full disk, say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say(f"error: the output can't be written: {error.strerror}")
        raise SystemExit(1) from None


def say(line: str) -> None:
    """Progress, for anything that takes over a second. Nobody may be listening any more."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Without characters that a terminal would obey: keys are anybody's text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def width() -> int | None:
    """Columns of a table. In a pipe: those of the terminal that the reader probably shows it on. None: ask stdout."""
    if sys.stdout.isatty():
        return None
    if os.environ.get("COLUMNS", "").isdigit():
        return max(WIDTH_MIN, int(os.environ["COLUMNS"]))
    for stream in (sys.stderr, sys.stdin):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return max(WIDTH_MIN, os.get_terminal_size(stream.fileno()).columns)
    return PLAIN_WIDTH


class Progress:
    """What is being done, said on stderr once it takes long, and again while it does."""

    def __init__(self, what: str) -> None:
        self.what = what
        """To be changed as things go on."""
        self._done = threading.Event()

    def _run(self) -> None:
        wait_s = QUIET_S
        while not self._done.wait(wait_s):
            say(f"{self.what} ...")
            wait_s = SAY_AGAIN_S


@contextlib.contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Around anything that may take over a second."""
    shown = Progress(what)
    thread = threading.Thread(target=shown._run, name="progress", daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        shown._done.set()
        thread.join()
