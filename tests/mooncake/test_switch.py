"""MOONPOOL_AS_MOONCAKE=1 in environments that the wheel was installed into, with and without Mooncake's own package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest

from moonpool.as_mooncake import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "moonpool-as-mooncake.pth", "README.md", "LICENSE")
FOLDERS = ("src", "master", "store_client", "connector", "schemas", "benchmarks")
REAL = pytest.mark.mooncake


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves build/ and egg-info beside what it builds."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    for name in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run(
        [*command, "-w", str(folder), str(tree)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[-2000:]
    return next(folder.glob("moonpool-*.whl"))


class Environment:
    """A virtual environment with the wheel and with what this one has, except Moonpool (and Mooncake)."""

    def __init__(self, folder: Path, wheel: Path, *, real: bool) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self._python = folder / "bin" / "python"
        site = next(folder.glob("lib/python*/site-packages"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        hidden = ("moonpool", "__editable__", *(() if real else ("mooncake",)))
        for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
            if not entry.name.startswith(hidden) and entry.suffix != ".pth":
                (site / entry.name).symlink_to(entry)

    def run(self, code: str, *, switch: str | None = None) -> list[str]:
        """Lines that a program printed."""
        environment = {
            name: text for name, text in os.environ.items() if name not in (VARIABLE, "PYTHONPATH")
        }
        if switch is not None:
            environment[VARIABLE] = switch
        done = subprocess.run(
            [str(self._python), "-c", textwrap.dedent(code)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """Without Mooncake's package."""
    return Environment(tmp_path_factory.mktemp("alone"), wheel, real=False)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """With Mooncake's package."""
    return Environment(tmp_path_factory.mktemp("beside"), wheel, real=True)


WHOSE = "from mooncake.store import MooncakeDistributedStore as S, ReplicateConfig; print(S.__module__)"
OURS = "moonpool.store_client.mooncake.store"
THEIRS = "mooncake.store"
NOTHING = """
    import sys
    print("moonpool" in sys.modules)
    try:
        import mooncake.store
    except ImportError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("switch", [None, "", "0"])
def test_unset_it_costs_nothing_and_does_nothing(alone: Environment, switch: str | None) -> None:
    assert alone.run(NOTHING, switch=switch) == ["False", "ModuleNotFoundError"]


def test_set_without_mooncakes_package(alone: Environment) -> None:
    assert alone.run(WHOSE, switch="1") == [OURS]
    assert alone.run("import mooncake.store; print(mooncake.store.__spec__.origin)", switch="1")
    engine = "try:\n    import mooncake.engine\nexcept ImportError as error:\n    print(error.name)"
    assert alone.run(engine, switch="1") == ["mooncake.engine"]


def test_set_nothing_is_imported_before_it_is_needed(alone: Environment) -> None:
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith('moonpool')))"
    assert alone.run(code, switch="1") == ["['moonpool', 'moonpool.as_mooncake']"]


def test_children_have_it_too(alone: Environment) -> None:
    code = f"""
        import subprocess, sys
        print(subprocess.run([sys.executable, "-c", "{WHOSE}"], capture_output=True, text=True).stdout, end="")
    """
    assert alone.run(code, switch="1") == [OURS]


@REAL
def test_beside_mooncakes_package(beside: Environment) -> None:
    assert beside.run(WHOSE) == [THEIRS]
    assert beside.run(WHOSE, switch="1") == [OURS]
    engine = "from mooncake.engine import TransferEngine; print(TransferEngine.__module__)"
    assert beside.run(engine, switch="1") == ["mooncake.engine"]


@REAL
def test_by_hand_and_back_again(beside: Environment) -> None:
    code = """
        import mooncake.store as real
        from moonpool.store_client.mooncake import install, uninstall
        for _ in range(2):
            install()
            install()
            from mooncake.store import MooncakeDistributedStore as ours
            from mooncake import store
            print(ours.__module__, store.MooncakeDistributedStore is ours)
            uninstall()
            uninstall()
            from mooncake.store import MooncakeDistributedStore as theirs
            from mooncake import store
            print(theirs is real.MooncakeDistributedStore, store is real)
    """
    assert beside.run(code) == [f"{OURS} True", "True True"] * 2


@REAL
def test_the_switch_can_be_undone_in_the_process(beside: Environment) -> None:
    code = f"""
        {WHOSE}
        from moonpool.as_mooncake import uninstall
        uninstall()
        {WHOSE}
    """
    assert beside.run(code, switch="1") == [OURS, THEIRS]


def test_by_hand_without_mooncakes_package(alone: Environment) -> None:
    code = f"""
        from moonpool.store_client.mooncake import install, uninstall
        install()
        {WHOSE}
        uninstall()
        try:
            import mooncake.store
        except ImportError as error:
            print(error.name)
    """
    assert alone.run(code) == [OURS, "mooncake"]


def test_by_hand_in_this_environment() -> None:
    """An editable install has no .pth file of ours: install() is its switch."""
    code = f"import moonpool.as_mooncake as switch; switch.install()\n{WHOSE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == OURS
