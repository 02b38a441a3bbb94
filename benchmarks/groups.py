"""The table of benchmark groups, imported only when they run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.results import Result
from moonpool.benchmarks.scale import Scale
from moonpool.schemas.errors import InvalidParams

GROUPS = {
    "lookup": "lookup_group",  # match of a prompt's blocks at a master that holds many
    "exist": "exist_group",  # which of some plain keys are there
    "put": "data_group",  # of batches of large objects
    "get": "data_group",
    "small": "data_group",  # objects of 4 KiB by the thousand
    "latency": "data_group",  # one object at a time
    "churn": "churn_group",  # puts into a full pool, without a pause
    "mixed": "mixed_group",  # one client beside another one that is greedy
    "recovery": "recovery_group",  # a master that is killed and started again
    "memory": "memory_group",  # bytes of master memory a block
    "takeover": "takeover_group",  # how soon a killed master with many blocks answers again
    "vllm": "vllm_group",  # what the connector costs vLLM on a cold pool (minutes)
}
"""Name, and module of moonpool.benchmarks."""

DEFAULT = tuple(name for name in GROUPS if name != "vllm")


def run_groups(names: Sequence[str], scale: Scale, progress: Progress) -> list[Result]:
    """Runs the groups (none: all but those that need an engine). Raises InvalidParams for an unknown name."""
    for name in names:
        if name not in GROUPS:
            raise InvalidParams(field="GROUP", value=name, allowed=", ".join(GROUPS))
    wanted = names or DEFAULT
    results: list[Result] = []
    for module in dict.fromkeys(GROUPS[name] for name in wanted):
        mine = frozenset(name for name in wanted if GROUPS[name] == module)
        progress.group(", ".join(sorted(mine)))
        found: list[Result] = import_module(f"moonpool.benchmarks.{module}").run(scale, progress, mine)
        results += [result for result in found if result.group in wanted]
    progress.done()
    return results
