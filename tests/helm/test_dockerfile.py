"""The Dockerfile, as far as that can be judged without an engine that builds it."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from support.chart import CHART, ROOT

INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "USER", "WORKDIR"}
SECRET = re.compile(r"token|passw|secret|api_?key|credential|index-url|extra-index", re.IGNORECASE)
SERVED = ("node", "node-rdma", "master")

Stage = list[tuple[str, str]]


def stages() -> dict[str, Stage]:
    """(instruction, what follows) of every stage, by its name; those of its base come first."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: dict[str, Stage] = {}
    name = ""
    for line in filter(None, text.replace("\\\n", " ").splitlines()):
        word, _, rest = line.partition(" ")
        assert word in INSTRUCTIONS, line
        if word == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]
            found[name] = list(found.get(base, [("FROM", base)]))
        else:
            found[name].append((word, rest))
    return found


def last(stage: Stage, instruction: str) -> str:
    return [rest for word, rest in stage if word == instruction][-1]


@pytest.mark.parametrize("name", SERVED)
def test_images_do_not_run_as_root(name: str) -> None:
    user = yaml.safe_load((CHART / "values.yaml").read_text())["user"]
    assert last(stages()[name], "USER") == f"{user}:{user}"


@pytest.mark.parametrize("name", SERVED)
def test_images_hold_what_was_built_and_no_tools(name: str) -> None:
    stage = stages()[name]
    copied = [rest for word, rest in stage if word == "COPY"]
    assert len(copied) == 1
    source = re.fullmatch(r"--from=(\S+) /opt/moonpool /opt/moonpool", copied[0])
    assert source and source[1] in stages()
    assert not any("pip" in rest for word, rest in stage if word == "RUN")
    assert all("apt-get" not in rest or "rm -rf /var/lib/apt/lists" in rest for _, rest in stage)
    assert json.loads(last(stage, "ENTRYPOINT")) == ["moonpool"]


def test_stages_are_on_one_base_with_a_fixed_version() -> None:
    bases = {stage[0][1] for stage in stages().values()}
    assert len(bases) == 1, "a virtual environment works on the base that it was made on"
    (base,) = bases
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", base)
    assert list(stages())[-1] == "master", "what `docker build .` makes"


def test_versions_are_pinned_and_nothing_is_secret() -> None:
    for stage in stages().values():
        for word, rest in stage:
            assert not SECRET.search(rest), rest
            for command in rest.split("&&"):
                if word == "RUN" and " install " in command and "pip" in command:
                    assert "--constraint constraints.txt" in command


def test_the_master_has_its_extra_and_no_torch() -> None:
    build = " ".join(rest for _, rest in stages()["build-master"])
    assert ".[master,otel]" in build
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["master"]]
    assert not [each for each in wanted if re.match(r"torch|vllm|transformers", each)]


def test_ports_are_those_of_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    master, node = values["master"], values["node"]
    assert last(stages()["master"], "EXPOSE").split() == [str(master["port"]), str(master["httpPort"])]
    wanted = [str(node[port]) for port in ("port", "dataPort", "metricsPort")]
    for name in ("node", "node-rdma"):
        assert last(stages()[name], "EXPOSE").split() == wanted


def test_images_of_the_chart_are_built_here() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    built = set(re.findall(r"--target (\S+)\s+--tag (\S+):", (ROOT / "Dockerfile").read_text()))
    named = {values["image"]["master"], values["image"]["node"], values["node"]["rdma"]["image"]}
    assert {image for _, image in built} == named
    assert {target for target, _ in built} == set(SERVED)


def test_the_context_is_enough_to_build_and_holds_no_more(tmp_path: Path) -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    left_out = [rule.removeprefix("**/") for rule in rules if rule.startswith("**/")]
    context = tmp_path / "context"
    context.mkdir()
    for name in [rule[1:] for rule in rules if rule.startswith("!")]:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, context / name, symlinks=True, ignore=shutil.ignore_patterns(*left_out)
            )
        else:
            shutil.copy(ROOT / name, context / name)
    held = [path.name for path in context.rglob("*")]
    assert not [name for name in held for rule in left_out if fnmatch.fnmatch(name, rule)]
    assert not {".git", "tests", ".venv"} & set(held)
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "-w", tmp_path, context], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with zipfile.ZipFile(next(tmp_path.glob("moonpool-*.whl"))) as wheel:
        assert {"moonpool/master/app.py", "moonpool/store_client/cli/main.py"} <= set(wheel.namelist())
