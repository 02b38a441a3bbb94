"""Engines that die, engines of several processes, and engines with a second connector beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.damage import flip_payload
from support.pool import Pool
from support.vllm_engines import BLOCK_TOKENS, EngineProcess, Nursery, StartEngine, prompt

pytestmark = pytest.mark.vllm

BLOCKS = 8
HIT = BLOCKS * BLOCK_TOKENS


@pytest.fixture(scope="module")
def engine(start: StartEngine) -> EngineProcess:
    return start()


def test_what_a_killed_engine_saved_is_hit_by_another(
    engine: EngineProcess,
    reference: EngineProcess,
    start: StartEngine,
) -> None:
    asked = prompt("killed", BLOCKS)
    first = start()
    first.generate(asked)
    first.settle()
    first.kill()
    (found,) = engine.generate(asked)
    assert (found.tokens, found.cached) == (reference.generate(asked)[0].tokens, HIT)
    engine.settle()


def test_tensor_parallel_ranks_save_and_load_and_one_without_its_part_is_a_miss(
    pool: Pool,
    reference: EngineProcess,
    start: StartEngine,
) -> None:
    asked = prompt("parallel", BLOCKS)
    want = reference.generate(asked)[0].tokens
    engine = start(tensor_parallel_size=2)
    (found,) = engine.generate(asked)
    assert (found.tokens, found.cached) == (want, 0)
    engine.forget()
    pool.await_saved(engine, asked, BLOCKS, ranks=2)
    (found,) = engine.generate(asked)
    assert (found.tokens, found.cached) == (want, HIT), engine.account()
    engine.settle()

    # Rank 1 loses its part of block 3, and the pool gets to know. Rank 0 still has its own.
    pool.lose(engine, asked, 3, rank=1)
    assert [copy.rank for copy in pool.describe(engine, asked, 3).copies] == [0]
    failed = engine.counted("load_failed_blocks")
    engine.forget()
    (found,) = engine.generate(asked)
    assert (found.tokens, found.cached) == (want, 3 * BLOCK_TOKENS)
    assert engine.counted("load_failed_blocks") == failed
    engine.settle()
    pool.await_saved(engine, asked, 4, ranks=2)
    assert [copy.rank for copy in pool.describe(engine, asked, 3).copies] == [0, 1]

    # Damage of one rank's part that nobody knows of yet: both ranks compute.
    pool.damage(engine, asked, 5, flip_payload, rank=1)
    engine.forget()
    (found,) = engine.generate(asked)
    assert (found.tokens, found.reason) == (want, "length")
    assert engine.counted("load_failed_blocks") > failed
    engine.settle()


@pytest.mark.parametrize("place", ["first", "second"])
def test_beside_vllms_example_connector(
    place: str,
    pool: Pool,
    engine: EngineProcess,
    reference: EngineProcess,
    nursery: Nursery,
    model: Path,
    tmp_path: Path,
) -> None:
    """In the first place with the engine in one process, in the second with the core in a process of its own, which
    is how stats come through pickles."""
    ours = pool.connector()
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    children = [ours, example] if place == "first" else [example, ours]
    several: dict[str, Any] = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": children},
    }
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0" if place == "first" else "1"}
    asked, new = prompt(f"known beside {place}", BLOCKS), prompt(f"new beside {place}", BLOCKS)
    want = [output.tokens for output in reference.generate(asked, new)]
    engine.generate(asked)
    engine.settle()
    with nursery.engine(model, several, environment, disable_hybrid_kv_cache_manager=True) as both:
        (found,) = both.generate(asked)  # only our pool has it
        assert (found.tokens, found.cached) == (want[0], HIT)
        assert both.generate(new)[0].tokens == want[1]
        both.settle()
        both.forget()
        (found,) = both.generate(new)  # either has it
        assert found.tokens == want[1]
        assert found.cached >= HIT - BLOCK_TOKENS
        assert both.counted("load_blocks") >= BLOCKS
        assert both.counted("save_blocks") >= BLOCKS
        assert both.counted("match_hit_tokens") >= HIT
        both.settle()
    (found,) = engine.generate(new)  # what it saved can be read by others
    assert (found.tokens, found.cached) == (want[1], HIT)
    engine.settle()
