"""Helm and the schemas of Kubernetes, in the Python of .venv-helm: one JSON request a line in, one answer a line out.

Run by support.chart; nothing of the project can be imported here.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import helm_python
import kubernetes_validate
from kubernetes_validate import utils

# Without this each manifest would read 5 MB of definitions again.
utils.schema_contents = functools.cache(utils.schema_contents)


class Worker:
    """Answers requests about one chart."""

    def __init__(self, chart: str) -> None:
        self._folder = chart
        self._chart = helm_python.Chart.load(chart)

    def render(self, values: dict[str, Any], name: str, namespace: str, upgrade: bool) -> dict[str, str]:
        """{path of the template: what became of it}."""
        options = {"name": name, "namespace": namespace, "is_upgrade": upgrade, "is_install": not upgrade}
        return self._chart.render(values, **options)

    def refuses(self, values: dict[str, Any]) -> str:
        """What values.schema.json says against values; empty: nothing."""
        try:
            self._chart.validate_schema(self._chart.merge_values(values))
        except helm_python.HelmValuesError as error:
            return str(error)
        return ""

    def lint(self, values: dict[str, Any]) -> list[str]:
        """Findings of `helm lint --strict`, hints without a consequence left out."""
        report = helm_python.lint(self._folder, values, strict=True)
        found = [
            f"{message['path']}: {message['error']}"
            for message in report["messages"]
            if message["severity"] > 1
        ]
        return found + report["errors"]

    def validate(self, document: dict[str, Any]) -> str:
        """What the schema of the newest Kubernetes says against a manifest; empty: nothing."""
        version = kubernetes_validate.latest_version()
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            return f"{type(error).__name__}: {error.message}"
        return ""

    def package(self, destination: str) -> str:
        """Path of the archive."""
        return helm_python.package(self._folder, destination=destination)

    def kubernetes(self) -> str:
        """The version that `validate` knows."""
        return kubernetes_validate.latest_version()


def main() -> None:
    """Serves until stdin ends."""
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(worker, request["call"])(*request["arguments"])}
        except helm_python.HelmError as error:
            answer = {"refused": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
