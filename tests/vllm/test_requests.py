"""What requests do to an engine with a pool: adapters, salts, pieces of prefill, preemption, aborts. Answers are
those of an engine without one, and at the end no block of the engine is held by anybody (EngineProcess.settle).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pool import Pool
from support.tiny_model import make_tiny_adapter
from support.vllm_engines import BLOCK_TOKENS, EngineProcess, StartEngine, prompt

pytestmark = pytest.mark.vllm

BLOCKS = 8
HIT = BLOCKS * BLOCK_TOKENS


@pytest.fixture(scope="module")
def engine(start: StartEngine) -> EngineProcess:
    """Computes two blocks a step."""
    return start(max_num_batched_tokens=2 * BLOCK_TOKENS)


@pytest.fixture(scope="module")
def narrow(start: StartEngine) -> EngineProcess:
    """Has room for two requests of BLOCKS blocks, and a half."""
    return start(max_num_batched_tokens=64, num_gpu_blocks_override=20, max_model_len=512)


def test_two_adapters_of_one_name_share_nothing(
    tmp_path: Path, reference: EngineProcess, start: StartEngine
) -> None:
    """vLLM's own block hashes don't tell them apart: they have one name and, one after the other, one folder."""
    asked = prompt("adapters", BLOCKS)
    engine = start(enable_lora=True, max_lora_rank=8, max_loras=1)
    answers = []
    for number, (seed, cached) in enumerate([(1, 0), (2, 0), (1, HIT), (2, HIT)], 1):
        lora = ("adapter", number, str(make_tiny_adapter(tmp_path / "adapter", seed=seed)))
        reference.forget()
        (want,) = reference.generate(asked, adapter=lora)
        engine.forget()
        (found,) = engine.generate(asked, adapter=lora)
        assert (found.tokens, found.cached) == (want.tokens, cached)
        answers.append(want.tokens)
    assert answers[0] != answers[1]
    assert answers[:2] == answers[2:]
    engine.forget()
    (found,) = engine.generate(asked)
    assert (found.tokens, found.cached) == (reference.generate(asked)[0].tokens, 0)
    engine.settle()


def test_salts_share_nothing(engine: EngineProcess, reference: EngineProcess) -> None:
    asked = prompt("salt", BLOCKS)
    (want,) = reference.generate(asked)
    for salt, cached in (("one", 0), ("two", 0), (None, 0), ("two", HIT)):
        engine.forget()
        (found,) = engine.generate(asked, salt=salt)
        assert (found.tokens, found.cached) == (want.tokens, cached)
    engine.settle()


def test_prefill_in_pieces_is_saved_and_loaded_whole(engine: EngineProcess, reference: EngineProcess) -> None:
    asked = [prompt("common", 3, 0) + prompt(f"pieces {i}", BLOCKS - 3) for i in range(4)]
    want = [output.tokens for output in reference.generate(*asked)]
    assert [output.tokens for output in engine.generate(*asked)] == want
    engine.forget()
    found = engine.generate(*asked)
    assert [output.tokens for output in found] == want
    assert [output.cached for output in found] == [HIT] * 4
    # Half of it from the pool, half in pieces.
    longer = [one[:HIT] + prompt("more", BLOCKS) for one in asked]
    want = [output.tokens for output in reference.generate(*longer)]
    engine.forget()
    found = engine.generate(*longer)
    assert [output.tokens for output in found] == want
    assert [output.cached for output in found] == [HIT] * 4
    engine.settle()


def test_preempted_requests_answer_as_if_nothing_had_been(
    narrow: EngineProcess, reference: EngineProcess
) -> None:
    asked = [prompt(f"preempted {i}", 4) for i in range(4)]
    want = [output.tokens for output in reference.generate(*asked, max_tokens=120)]
    for _ in range(2):  # computed, then from the pool
        preempted = narrow.metrics()["vllm:num_preemptions_total"]
        found = narrow.generate(*asked, max_tokens=120)
        assert [output.tokens for output in found] == want
        assert [output.reason for output in found] == ["length"] * 4
        assert narrow.metrics()["vllm:num_preemptions_total"] > preempted
        narrow.settle()
        narrow.forget()
    assert narrow.counted("load_blocks") > 0
    assert narrow.counted("load_failed_blocks") == 0


@pytest.mark.parametrize("stage", ["match", "get_blocks", "prefill", "decode", "put_blocks"])
def test_an_abort_leaves_no_block_behind(
    stage: str, pool: Pool, engine: EngineProcess, reference: EngineProcess
) -> None:
    """At `match` the pool hasn't answered yet, at `get_blocks` it is loading, at `put_blocks` it is saving."""
    known, asked = prompt(f"known {stage}", BLOCKS), prompt(f"abort {stage}", BLOCKS)
    engine.generate(known)
    engine.forget()
    held = stage in ("match", "get_blocks", "put_blocks")
    if held:
        engine.ask("hold", what=stage)
    name = engine.ask("begin", prompt=known if stage == "get_blocks" else asked)["name"]
    engine.ask("step", until=f"gate {stage}" if held else stage)
    engine.ask("abort", name=name)
    if held:
        engine.ask("release", what=stage)
    engine.settle()
    for one in (known, asked):
        (found,) = engine.generate(one)
        assert found.tokens == reference.generate(one)[0].tokens
    engine.settle()
