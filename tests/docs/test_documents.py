"""Documents that can't rot: tables equal the code, commands exist, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import docs_tables
import pytest
import typer.main
from support.doc_blocks import PAGES, commands, named

from moonpool.schemas.config_load import KINDS, OTHER_VARIABLES
from moonpool.schemas.errors import CODES
from moonpool.store_client.cli.main import app

ROOT = docs_tables.ROOT
TOOLS = {
    "make",
    "git",
    "python",
    "pip",
    ".",
    "cd",
    "moonpool",
    "curl",
    "echo",
    "export",
    "docker",
    "etcd",
    "helm",
    "kubectl",
    "vllm",
    "etcdctl",
}


@pytest.mark.parametrize("name", docs_tables.PAGES)
def test_tables_equal_the_code(name: str) -> None:
    text = (ROOT / name).read_text()
    assert docs_tables.refreshed(text) == text, "run `make docs`"


def test_every_table_is_on_a_page() -> None:
    marks = {
        mark
        for name in docs_tables.PAGES
        for _, mark, _ in docs_tables.MARK.findall((ROOT / name).read_text())
    }
    assert marks == docs_tables.TABLES.keys()


def test_every_setting_flag_and_error_is_documented() -> None:
    settings, cli, errors = (
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("settings", "cli", "errors")
    )
    for model in KINDS.values():
        for name, field in model.model_fields.items():
            assert f"| `{name}` |" in settings
            assert field.description
    assert all(f"`{variable}`" in settings for variable in OTHER_VARIABLES)
    for words, command in docs_tables.leaf_commands("moonpool", typer.main.get_command(app)):
        section = cli.split(f"### {words}\n")[1].split("###")[0]
        for parameter in command.params:
            assert parameter.help, f"{words} {parameter.name} has no help"
            assert parameter.opts[0] in section or f"`{parameter.name.upper()}`" in section
    for code, kind in CODES.items():
        assert f"| {code} | `{kind.__name__}` |" in errors


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_of_the_documents_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    leaves = dict(docs_tables.leaf_commands("moonpool", typer.main.get_command(app)))
    for line in commands(page):
        words = re.sub(r"^(\w+=\S+ )+", "", line).split()
        assert words[0] in TOOLS, line
        if words[0] == "make":
            assert set(words[1:]) <= targets, line
        if words[0] == "moonpool":
            known = next((leaf for leaf in leaves if f"{line} ".startswith(f"{leaf} ")), None)
            assert known, line
            flags = {option for parameter in leaves[known].params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= flags, line


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_tests_that_the_documents_name_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`(tests/[\w/]+\.py)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_every_invariant_has_a_guard() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| (I\d+) \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    assert [name for name, _ in rows] == [f"I{number}" for number in range(1, 11)]
    assert all("`tests/" in guards for _, guards in rows)


def test_settings_that_the_readme_names_exist() -> None:
    section = (ROOT / "README.md").read_text().split("## Settings")[1].split("## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([a-z, ]+) \|", section, re.MULTILINE)
    assert rows
    for names, kinds in rows:
        for kind in kinds.split(", "):
            assert set(re.findall(r"`(\w+)`", names)) <= KINDS[kind].model_fields.keys()
