"""Real vLLM on the CPU with what is harder than one dense model: sliding windows, adapters, tensor parallelism, MultiConnector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.connector.conftest import Engine, Pool, options_of
from tests.connector.test_vllm import prompt_of, whole
from tests.support.tiny_model import make_tiny_adapter, make_tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

Start = Callable[..., list[Engine]]


def test_sliding_windows_and_full_attention_side_by_side(tmp_path: Path, pool: Pool, start: Start) -> None:
    model = make_tiny_model(tmp_path / "windows", window=100)
    options = options_of(model, pool.master)
    first, second = start(options, options)
    prompt = prompt_of(20)
    computed = first.generate(prompt, max_tokens=24)[0]
    first.ask("settle")
    loaded = second.generate(prompt, max_tokens=24)[0]
    assert (computed["cached"], loaded["cached"]) == (0, whole(700))
    assert loaded["tokens"] == computed["tokens"]
    # The pool holds a window of the longer prompt's end only where the engine still had it.
    longer = prompt + computed["tokens"] + prompt_of(21, 200)
    wanted = first.generate(longer)[0]
    first.ask("settle")
    found = second.generate(longer)[0]
    assert found["cached"] >= whole(700)
    assert found["tokens"] == wanted["tokens"]
    for engine in (first, second):
        engine.close()


def test_adapters_of_one_name_are_told_apart_by_content(
    tiny: Path, tmp_path: Path, pool: Pool, start: Start
) -> None:
    options = options_of(tiny, pool.master, enable_lora=True, max_lora_rank=8)
    first, second = start(options, options)
    folder = tmp_path / "adapter"
    prompt = prompt_of(22)
    make_tiny_adapter(folder, seed=1)
    base = first.generate(prompt)[0]
    adapted = first.generate(prompt, lora=str(folder))[0]
    assert adapted["cached"] == 0
    assert adapted["tokens"] != base["tokens"]
    first.ask("settle")
    make_tiny_adapter(folder, seed=2)  # another adapter at the same path, with the same name
    other = second.generate(prompt, lora=str(folder))[0]
    assert other["cached"] == 0
    assert other["tokens"] != adapted["tokens"]
    assert second.generate(prompt)[0]["cached"] == whole(700)
    for engine in (first, second):
        engine.close()


def test_two_tensor_parallel_ranks_store_a_shard_each(tiny: Path, pool: Pool, start: Start) -> None:
    options = options_of(tiny, pool.master, tensor_parallel_size=2)
    (first,) = start(options)
    prompt = prompt_of(23)
    computed = first.generate(prompt, max_tokens=16)[0]
    first.ask("settle")
    first.close()
    (second,) = start(options)
    loaded = second.generate(prompt, max_tokens=16)[0]
    assert (computed["cached"], loaded["cached"]) == (0, whole(700))
    assert loaded["tokens"] == computed["tokens"]
    second.close()


def test_as_a_child_of_multi_connector(tiny: Path, tmp_path: Path, pool: Pool, start: Start) -> None:
    ours: dict[str, Any] = options_of(tiny, pool.master)["kv_transfer_config"]
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_module_path": None,
        "kv_connector_extra_config": {"connectors": [ours, example]},
    }
    options = options_of(tiny, pool.master, connector=several, disable_hybrid_kv_cache_manager=True)
    first, second = start(options, options)
    prompt = prompt_of(24)
    computed = first.generate(prompt)[0]
    first.ask("settle")
    loaded = second.generate(prompt)[0]
    assert loaded["cached"] >= whole(700)
    assert loaded["tokens"] == computed["tokens"]
    assert second.stats()["load_blocks"] > 0
    assert "MultiConnector is fail" in second.log.read_text()
    for engine in (first, second):
        engine.close()
