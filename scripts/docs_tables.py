"""Writes the tables of docs/ and README.md that have one source in the code, and the chart's schema of settings.
`make docs` runs it; a test checks it.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chart_schema
import typer.main

from moonpool.master.rest import access
from moonpool.master.rest.app import rest_routes
from moonpool.schemas.config_load import KINDS
from moonpool.schemas.errors import CODES
from moonpool.schemas.metrics import ENGINE_METRICS, MASTER_METRICS, NODE_METRICS, Metric
from moonpool.schemas.units import format_size
from moonpool.store_client.cli.failures import EXIT_CODES, exit_code_of
from moonpool.store_client.cli.main import app
from moonpool.store_client.doctor.findings import CHECKS

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "docs/settings.md",
    "docs/errors.md",
    "docs/cli.md",
    "docs/metrics.md",
    "docs/rest.md",
)
PACKAGES = ("schemas", "master", "store_client", "connector")
MARK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def settings_table(kind: str) -> str:
    """Every setting of one kind."""
    rows = []
    for name, field in KINDS[kind].model_fields.items():
        default = field.default
        if isinstance(default, int) and "size" in name and default:
            shown = f'`"{format_size(default)}"`'
        else:
            shown = f"`{str(default).lower()}`" if isinstance(default, bool) else f"`{default}`"
        rows.append((f"`{name}`", shown if default != "" else "empty", field.description))
    return table(("setting", "default", "what it is"), rows)


def errors_table() -> str:
    """Every error, with its number on the wire and the exit code that a command ends with."""
    rows = []
    for code, kind in sorted(CODES.items(), reverse=True):
        sentence = re.sub(r"\{(\w+)[^}]*\}", r"*\1*", kind.sentence)
        rows.append(
            (
                code,
                f"`{kind.__name__}`",
                f"`{kind.__mro__[1].__name__}`",
                sentence,
                exit_code_of(kind(wire="")),
            )
        )
    return table(("code", "class", "kind", "what it says", "exit code"), rows)


def commands_text() -> str:
    """Every command with its flags, as its own --help says them."""
    group = typer.main.get_command(app)
    sections = []
    for words, command in leaf_commands("moonpool", group):
        rows = [
            (
                f"`{', '.join(parameter.opts)}`"
                if parameter.opts[0].startswith("-")
                else f"`{parameter.name.upper()}`",
                parameter.help,
            )
            for parameter in command.params
            if parameter.help
        ]
        text = f"### {words}\n\n{command.help}\n"
        sections.append(text + ("\n" + table(("flag", "what it does"), rows) if rows else ""))
    return "\n" + "\n".join(sections) + "\n"


def leaf_commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """("moonpool config show", command) for every command that isn't only a group."""
    children = getattr(command, "commands", None)
    if not children:
        yield words, command
        return
    for name, child in children.items():
        yield from leaf_commands(f"{words} {name}", child)


def files_text() -> str:
    """Every file of the packages with the first sentence of its docstring."""
    parts = []
    for package in PACKAGES:
        rows = []
        for path in sorted((ROOT / package).rglob("*.py")):
            about = ast.get_docstring(ast.parse(path.read_text())) or ""
            first = re.split(r"(?<=[.])\s|\n\n", about.replace("|", "\\|"))[0].rstrip(":").replace("\n", " ")
            if path.name != "__init__.py" and first:
                rows.append((f"`{path.relative_to(ROOT / package)}`", first))
        parts.append(f"### {package}/\n\n{table(('file', 'what it is'), rows)}")
    return "\n" + "\n".join(parts) + "\n"


def metrics_table(metrics: Mapping[str, Metric]) -> str:
    """Every metric of one table."""
    rows = [
        (f"`{name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for name, metric in metrics.items()
    ]
    return table(("metric", "kind", "labels", "what it is"), rows)


ROLES = {
    access.admin: "admin",
    access.reader: "monitor",
    access.tenant: "reader or client, of its tenant",
    access.anybody: "monitor; reader or client, of its tenant",
}
"""Who may use an endpoint, beside admins, by what guards it."""


def endpoints_table() -> str:
    """Every endpoint of the REST interface with who may use it."""
    rows = []
    for route in rest_routes():
        calls = {dependency.call for dependency in route.dependant.dependencies}
        role = next((words for guard, words in ROLES.items() if guard in calls), "anybody")
        for method in sorted(route.methods or ()):
            rows.append((f"`{method} {route.path}`", role, route.summary))
    return table(("endpoint", "role", "what it does"), rows)


TABLES: dict[str, Callable[[], str]] = {
    **{kind: lambda kind=kind: settings_table(kind) for kind in KINDS},  # type: ignore[misc]
    "errors": errors_table,
    "commands": commands_text,
    "files": files_text,
    "master-metrics": lambda: metrics_table(MASTER_METRICS),
    "node-metrics": lambda: metrics_table(NODE_METRICS),
    "engine-metrics": lambda: metrics_table(ENGINE_METRICS),
    "endpoints": endpoints_table,
    "doctor": lambda: table(
        ("check", "what it looks at"), ((f"`{name}`", what) for name, what in CHECKS.items())
    ),
    "exit-codes": lambda: table(("exit code", "meaning"), EXIT_CODES.items()),
}


def refreshed(text: str) -> str:
    """A page with its tables made anew."""
    return MARK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main() -> None:
    """Rewrites the pages in place."""
    for path, remake in [
        *((ROOT / name, refreshed) for name in PAGES),
        (chart_schema.SCHEMA, chart_schema.refreshed),
    ]:
        before = path.read_text()
        after = remake(before)
        if after != before:
            path.write_text(after)
            print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
