"""The table of benchmark groups, imported only when they run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from moonpool.benchmarks.results import Result
from moonpool.schemas.errors import InvalidParams

GROUPS: dict[str, str] = {
    "lookup": "match of a prompt's blocks at a master that holds many",
    "memory": "bytes of master memory a block",
    "vllm": "what the connector costs vLLM on a cold pool (minutes)",
}
"""Name and what it measures. The module is moonpool.benchmarks.<name>_group."""

DEFAULT = ("lookup", "memory")


def run_groups(names: Sequence[str]) -> list[Result]:
    """Runs the groups in the order given (none: the quick ones). Raises InvalidParams for an unknown name."""
    for name in names:
        if name not in GROUPS:
            raise InvalidParams(field="GROUP", value=name, allowed=", ".join(GROUPS))
    results: list[Result] = []
    for name in names or DEFAULT:
        results += import_module(f"moonpool.benchmarks.{name}_group").run()
    return results
