"""The chart as Helm sees it, through a process in .venv-helm: its packages are too many for the usual environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "helm" / "moonpool"
PYTHON = ROOT / ".venv-helm" / "bin" / "python"
VALUES = {path.name.removesuffix("-values.yaml"): path for path in sorted(CHART.glob("ci/*-values.yaml"))}
"""Values to try the chart with, by their names."""
WORKER = Path(__file__).with_name("helm_worker.py")

Manifest = dict[str, Any]
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Refused(Exception):
    """Helm renders nothing from these values; its words."""


class Chart:
    """One process for all questions about the chart, ended by `with`."""

    def __enter__(self) -> Self:
        assert PYTHON.exists(), f"{PYTHON.parent.parent} is missing: run `make setup`, which makes it"
        self._process = subprocess.Popen(
            [PYTHON, WORKER, CHART], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def ask(self, call: str, *arguments: Any) -> Any:
        """What a method of the worker returns. Raises Refused."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": call, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the worker ended; its error is above"
        answer = json.loads(line)
        if "refused" in answer:
            raise Refused(answer["refused"])
        return answer["result"]

    def templates(self, values: Manifest, *, name: str = "pool", upgrade: bool = False) -> dict[str, str]:
        """Rendered text by template."""
        rendered: dict[str, str] = self.ask("render", values, name, "inference", upgrade)
        return {path.removeprefix("moonpool/templates/"): text for path, text in rendered.items()}

    def render(self, values: Manifest | str, *, name: str = "pool") -> Manifests:
        """All manifests from values, or from a file of ci/ by its name."""
        if isinstance(values, str):
            values = yaml.safe_load(VALUES[values].read_text())
        texts = self.templates(values, name=name)
        return Manifests(
            document
            for path, text in texts.items()
            if path.endswith(".yaml")
            for document in yaml.load_all(text, Loader)
            if document
        )


class Manifests(list[Manifest]):
    """What one rendering made."""

    def of(self, kind: str, name: str = "") -> Manifest:
        """The one of that kind whose name ends so."""
        (found,) = [each for each in self.all(kind) if each["metadata"]["name"].endswith(name)]
        return found

    def all(self, kind: str) -> list[Manifest]:
        """All of that kind."""
        return [each for each in self if each["kind"] == kind]

    def pods(self) -> list[tuple[str, Manifest]]:
        """(name, pod spec) of everything that runs."""
        templates = [
            (each["metadata"]["name"], each["spec"]["template"]["spec"])
            for kind in ("StatefulSet", "DaemonSet", "Deployment", "Job")
            for each in self.all(kind)
        ]
        return templates + [(each["metadata"]["name"], each["spec"]) for each in self.all("Pod")]
