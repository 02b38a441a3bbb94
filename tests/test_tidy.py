"""The project's style, as far as a program can check it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("master", "store_client", "connector", "schemas")
CODE = (*PACKAGES, "benchmarks", "tests")
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
FOREIGN = ("asyncio.", "KVConnectorBase")
"""Bases whose methods are documented where they come from."""

LONGER = {
    "schemas/messages.py": "one page of every message: cut in pieces it could not be read as the protocol",
}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name]


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """(dotted name, node) of every class, and every function that isn't inside another or documented by its base."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        if isinstance(child, ast.ClassDef) and not any(
            ast.unparse(base).startswith(FOREIGN) for base in child.bases
        ):
            yield from definitions(child, f"{prefix}{child.name}.")


@pytest.mark.parametrize("path", sources(*CODE), ids=named)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    if named(path) not in LONGER:
        assert len(text.splitlines()) <= FILE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{named(path)}:{node.lineno} {node.name} has {lines} lines"


def test_the_list_of_longer_files_is_true() -> None:
    for name in LONGER:
        assert len((ROOT / name).read_text().splitlines()) > FILE_LINES_MAX, f"{name} may leave the list"


def test_whoever_freezes_a_process_waits_until_it_has_stopped() -> None:
    """What kill(2) has only sent lets a busy process answer once more: see support/freezing.py."""
    senders = {named(path) for path in sources("tests") if "signal.SIGSTOP" in path.read_text()}
    assert senders - {named(Path(__file__).resolve())} == {"tests/support/freezing.py"}


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=named)
def test_what_is_public_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    missing = []
    if tree.body and not ast.get_docstring(tree):
        missing.append("the file itself")
    for name, node in definitions(tree):
        parts = name.split(".")
        if any(part.startswith("_") for part in parts):
            continue
        decorators = {ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])}
        if decorators & {"override", "overload", "typing.override", "typing.overload"}:
            continue
        if not ast.get_docstring(node):  # type: ignore[arg-type]
            missing.append(name)
    assert not missing, f"{named(path)}: no docstring on {', '.join(missing)}"


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    # Written in pieces, so that this file doesn't find itself.
    forbidden = re.compile("|".join(["/" + "work/", "/tmp" + "/w/", "/home" + r"/\w+/", "/root" + "/"]))
    found = []
    for path in tracked():
        if path.is_symlink() or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if forbidden.search(line):
                found.append(f"{named(path)}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-helm.txt"])
def test_pins_name_no_registry(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    for line in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line), line


def test_the_wheel_holds_every_file(tmp_path: Path) -> None:
    wanted = {
        f"moonpool/{named(path)}"
        for path in sources(*PACKAGES, "benchmarks")
        if "__pycache__" not in path.parts
    }
    wanted |= {f"moonpool/{path.name}" for path in (ROOT / "src" / "moonpool").glob("*.py")}
    wanted |= {f"moonpool/{folder}/py.typed" for folder in (*PACKAGES, "benchmarks")}
    # From a copy: setuptools leaves build/ and egg-info beside what it builds.
    tree = tmp_path / "tree"
    for path in [*sources(*PACKAGES, "benchmarks"), *ROOT.glob("src/moonpool/*"), *ROOT.glob("*/py.typed")]:
        target = tree / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.readlink())
        elif path.is_file():
            target.write_bytes(path.read_bytes())
    for name in ("pyproject.toml", "setup.py", "moonpool-as-mooncake.pth", "README.md", "LICENSE"):
        (tree / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run(
        [*command, "-w", str(tmp_path), str(tree)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-2000:]
    with zipfile.ZipFile(next(tmp_path.glob("moonpool-*.whl"))) as wheel:
        held = set(wheel.namelist())
    assert wanted - held == set()
    assert "moonpool-as-mooncake.pth" in held
    assert {name for name in held if name.endswith(".py")} <= wanted
