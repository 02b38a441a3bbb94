"""Real vLLM engines on the CPU that share a real pool: hits, and what happens when the pool fails."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.connector.conftest import BLOCK_TOKENS, Engine, Pool, options_of
from tests.support.tiny_model import VOCABULARY, make_tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

Start = Callable[..., list[Engine]]


def prompt_of(seed: int, length: int = 700) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(length)]


def whole(length: int) -> int:
    """Tokens of the whole blocks of a prompt that can be a hit."""
    return (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.fixture(scope="module")
def engines(tiny: Path, pool: Pool, start: Start) -> list[Engine]:
    """Two of the same, and one that never had a pool."""
    options = options_of(tiny, pool.master)
    alone = {key: value for key, value in options.items() if key != "kv_transfer_config"}
    return start(options, options, alone)


def test_a_second_engine_hits_and_answers_the_same(engines: list[Engine]) -> None:
    first, second, alone = engines
    prompt = prompt_of(1)
    computed = first.generate(prompt, max_tokens=24)[0]
    first.ask("settle")
    loaded = second.generate(prompt, max_tokens=24)[0]
    assert (computed["cached"], loaded["cached"]) == (0, whole(700))
    assert computed["tokens"] == loaded["tokens"] == alone.generate(prompt, max_tokens=24)[0]["tokens"]


def test_an_engine_finds_its_own_blocks_again(engines: list[Engine]) -> None:
    first = engines[0]
    prompt = prompt_of(2)
    computed = first.generate(prompt)[0]
    assert first.ask("forget")["done"]
    loaded = first.generate(prompt)[0]
    assert loaded["cached"] == whole(700)
    assert loaded["tokens"] == computed["tokens"]


def test_a_conversation_goes_on_in_another_engine(engines: list[Engine]) -> None:
    first, second, _ = engines
    talk = prompt_of(3, 300)
    for turn in range(3):
        speaker, listener = (first, second) if turn % 2 else (second, first)
        answer = speaker.generate(talk, max_tokens=40)[0]
        speaker.ask("settle")
        talk = talk + answer["tokens"] + prompt_of(30 + turn, 50)
        # All but the last token of what the other one has decoded is there.
        assert listener.generate(talk, max_tokens=1)[0]["cached"] >= whole(len(talk) - 50)


def test_many_requests_at_once_with_a_common_beginning(engines: list[Engine]) -> None:
    first, second, alone = engines
    common = prompt_of(4, 400)
    prompts = [common + prompt_of(40 + i, 60 + 40 * i) for i in range(6)]
    first.generate(*prompts[:3])
    first.ask("settle")
    answers = second.generate(*prompts, max_tokens=12)
    assert all(answer["cached"] >= whole(400) for answer in answers)
    assert [a["tokens"] for a in answers] == [
        alone.generate(prompt, max_tokens=12)[0]["tokens"] for prompt in prompts
    ]


def test_a_prompt_of_whole_blocks_is_a_hit_but_for_one_token(engines: list[Engine]) -> None:
    first, second, _ = engines
    prompt = prompt_of(5, 10 * BLOCK_TOKENS)
    computed = first.generate(prompt)[0]
    first.ask("settle")
    loaded = second.generate(prompt)[0]
    assert loaded["cached"] == 10 * BLOCK_TOKENS - 1
    assert loaded["tokens"] == computed["tokens"]


def test_a_salt_keeps_tenants_of_an_engine_apart(engines: list[Engine]) -> None:
    first, second, _ = engines
    prompt = prompt_of(6)
    first.generate(prompt, salt="one")
    first.ask("settle")
    assert second.generate(prompt, salt="two")[0]["cached"] == 0
    assert second.generate(prompt, salt="one")[0]["cached"] == whole(700)


def test_aborts_at_any_moment_leave_nothing_behind(engines: list[Engine]) -> None:
    first, second, alone = engines
    prompt = prompt_of(7)
    first.generate(prompt)
    first.ask("settle")
    for steps in (0, 1, 2, 3, 5, 8, 20):
        assert second.ask("abort", prompt=prompt, steps=steps)["settled"]
        assert second.ask("forget")["done"], f"blocks are held after an abort at step {steps}"
    assert second.generate(prompt)[0]["tokens"] == alone.generate(prompt)[0]["tokens"]


def test_counters_reach_vllms_metrics(engines: list[Engine]) -> None:
    stats = engines[1].stats()
    assert stats["load_blocks"] > 0
    assert stats["save_blocks"] > 0
    assert stats["match_requests"] > 0
    assert stats["load_failed_blocks"] == 0


def test_reset_clears_what_this_model_has_in_the_pool(engines: list[Engine]) -> None:
    first, second, _ = engines
    prompt = prompt_of(8)
    first.generate(prompt)
    assert first.ask("reset")["done"]
    assert second.generate(prompt)[0]["cached"] == 0
    second.ask("settle")
    assert first.generate(prompt)[0]["cached"] == whole(700)


def test_other_weights_in_a_folder_of_the_same_name_share_nothing(
    engines: list[Engine], tiny: Path, pool: Pool, start: Start, tmp_path: Path
) -> None:
    prompt = prompt_of(9)
    engines[0].generate(prompt)
    engines[0].ask("settle")
    other = make_tiny_model(tmp_path / tiny.name, seed=1)
    (stranger,) = start(options_of(other, pool.master))
    assert stranger.generate(prompt)[0]["cached"] == 0
    stranger.close()


def test_a_frozen_pool_costs_each_engine_little_and_no_errors(engines: list[Engine], pool: Pool) -> None:
    second, alone = engines[1], engines[2]
    prompts = [prompt_of(100 + i, 200) for i in range(4)]
    wanted = [alone.generate(prompt)[0]["tokens"] for prompt in prompts]
    pool.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        answers = [second.generate(prompt)[0] for prompt in prompts]
        took = time.monotonic() - began
    finally:
        pool.signal(signal.SIGCONT)
    assert [answer["tokens"] for answer in answers] == wanted
    assert {answer["reason"] for answer in answers} == {"length"}
    assert took < 2 * 5.0 + 15.0  # one deadline of match_timeout_s, or two, then the breaker


def test_a_killed_pool_is_a_miss_and_the_policy_was_made_recompute(engines: list[Engine], pool: Pool) -> None:
    second, alone = engines[1], engines[2]
    prompt = prompt_of(10)
    pool.signal(signal.SIGKILL)
    answer = second.generate(prompt)[0]
    assert answer["reason"] == "length"
    assert answer["tokens"] == alone.generate(prompt)[0]["tokens"]
    assert "set to recompute" in second.log.read_text()
