"""Whose blocks may be shared (I10): keyspaces, and digests of weights and adapters."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from moonpool.connector.fingerprint import adapter_digest, files_digest, live_digest, model_folder
from moonpool.connector.groups import Group, GroupKind, GroupPlan
from moonpool.connector.identity import Identity
from moonpool.connector.records import RankFacts
from moonpool.schemas.errors import InternalError
from moonpool.schemas.keyspace import Kind

FULL = Group(0, GroupKind.FULL, 16)
WINDOW = Group(1, GroupKind.WINDOW, 16, 99)
FACTS = RankFacts(1, 0, (64, 32), ("a", "b"), "weights", (("attention", "x"),))
BASE = Identity("model", "tenant", 32, GroupPlan((FULL, WINDOW), 16), {"dtype": "bf16"}, (FACTS,))


def with_rank(**change: object) -> Identity:
    return dataclasses.replace(BASE, ranks=(dataclasses.replace(FACTS, **change),))  # type: ignore[arg-type]


def test_a_keyspace_a_group() -> None:
    full, window = BASE.specs()
    for spec in (full, window):
        spec.check()
    assert (full.kind, full.shard_bytes) == (Kind.CHAINED, (64,))
    assert (window.kind, window.shard_bytes) == (Kind.FLAT, (32,))
    assert BASE.specs() == BASE.specs()


@pytest.mark.parametrize(
    "other",
    [
        lambda: with_rank(weights="others").specs(),
        lambda: with_rank(layouts=("c", "b")).specs(),
        lambda: with_rank(shard_bytes=(128, 32)).specs(),
        lambda: with_rank(facts=(("attention", "y"),)).specs(),
        lambda: BASE.specs("adapter"),
        lambda: dataclasses.replace(BASE, config={"dtype": "fp8"}).specs(),
        lambda: dataclasses.replace(BASE, tenant="other").specs(),
        lambda: dataclasses.replace(BASE, plan=GroupPlan((FULL, WINDOW), 8)).specs(),
        lambda: dataclasses.replace(BASE, ranks=(FACTS, dataclasses.replace(FACTS, shard=1))).specs(),
    ],
    ids=["weights", "layout", "size", "scales", "adapter", "config", "tenant", "hashes", "shards"],
)
def test_one_differing_fact_is_another_keyspace(other: Callable[[], tuple[object, ...]]) -> None:
    assert other()[0] != BASE.specs()[0]


def test_ranks_with_equal_kv_are_one_shard() -> None:
    twice = dataclasses.replace(BASE, ranks=(FACTS, dataclasses.replace(FACTS, weights="its own half")))
    assert twice.specs()[0].shard_bytes == (64,)
    with pytest.raises(InternalError, match="equal KV"):
        dataclasses.replace(BASE, ranks=(FACTS, dataclasses.replace(FACTS, shard_bytes=(1, 2)))).specs()
    with pytest.raises(InternalError, match="gap"):
        with_rank(shard=1).specs()


def test_files_digest_sees_one_changed_tensor_and_not_how_files_are_cut(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.randn(40, 30) for i in range(4)}
    folders = {name: tmp_path / name for name in ("one", "two", "changed")}
    for folder in folders.values():
        folder.mkdir()
    save_file(tensors, folders["one"] / "model.safetensors")
    save_file({k: tensors[k] for k in ("t0", "t3")}, folders["two"] / "a.safetensors")
    save_file({k: tensors[k] for k in ("t1", "t2")}, folders["two"] / "b.safetensors")
    changed = dict(tensors, t2=tensors["t2"].clone())
    changed["t2"] *= 1.5
    save_file(changed, folders["changed"] / "model.safetensors")
    digests = {name: files_digest(folder) for name, folder in folders.items()}
    assert digests["one"] == digests["two"] != digests["changed"]


def test_other_formats_and_broken_files(tmp_path: Path) -> None:
    assert files_digest(tmp_path) is None
    (tmp_path / "model.bin").write_bytes(os.urandom(5000))
    first = files_digest(tmp_path)
    (tmp_path / "model.bin").write_bytes(os.urandom(5000))
    assert None is not files_digest(tmp_path) != first
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 20)
    assert files_digest(tmp_path) is None


def test_live_digest_sees_an_update_in_place() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).to(torch.bfloat16))
    before = live_digest(model)
    assert live_digest(model) == before
    with torch.no_grad():
        model[1].weight.mul_(2.0)
    assert live_digest(model) != before


def test_adapters_are_known_by_content(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 2.0), ("copy of a", 1.0)):
        (tmp_path / name).mkdir()
        save_file({"w": torch.full((4, 4), value)}, tmp_path / name / "adapter_model.safetensors")
        (tmp_path / name / "adapter_config.json").write_text("{}")
    a, b, copy = (adapter_digest(str(tmp_path / name)) for name in ("a", "b", "copy of a"))
    assert a == copy != b
    (tmp_path / "a" / "adapter_config.json").write_text('{"lora_alpha": 2}')
    assert adapter_digest(str(tmp_path / "a")) != a
    assert adapter_digest(str(tmp_path / "gone")) is None


def test_a_model_that_is_not_on_this_machine_has_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert model_folder("nobody/such-a-model", None) is None
