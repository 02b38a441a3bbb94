"""What engines share when nothing is wrong: whole prompts, beginnings, conversations, sliding windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pool import Pool
from support.tiny_model import make_tiny_model
from support.vllm_engines import BLOCK_TOKENS, EngineProcess, Nursery, prompt

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def pair(start) -> tuple[EngineProcess, EngineProcess]:  # type: ignore[no-untyped-def]
    """Two engines of one model."""
    return start(), start()


@pytest.fixture(scope="module")
def windows(
    nursery: Nursery, pool: Pool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[EngineProcess]]:
    """Two engines of a model with sliding windows beside full attention, and one without a pool."""
    model = make_tiny_model(tmp_path_factory.mktemp("windows") / "tiny", window=100)
    connector = pool.connector()
    engines = [nursery.engine(model, connector), nursery.engine(model, connector), nursery.engine(model)]
    yield engines
    for engine in engines:
        engine.kill()


def whole(tokens: int) -> int:
    """Tokens of the blocks that are full before the last token."""
    return (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_second_engine_loads_what_the_first_has_computed(
    pair: tuple[EngineProcess, EngineProcess], reference: EngineProcess
) -> None:
    asked = prompt("pair", 20)
    first, second = pair
    (computed,) = first.generate(asked, max_tokens=24)
    first.settle()
    (loaded,) = second.generate(asked, max_tokens=24)
    assert (computed.cached, loaded.cached) == (0, whole(len(asked)))
    assert computed.tokens == loaded.tokens == reference.generate(asked, max_tokens=24)[0].tokens
    for engine, done in ((first, "save"), (second, "load")):
        assert engine.counted("transfer_bytes") >= engine.counted(f"{done}_bytes") > 0
        assert engine.metrics()["vllm:moonpool_transfer_seconds_count"] >= 1
        assert engine.metrics().get("vllm:moonpool_open_breakers", 0.0) == 0


def test_a_prompt_of_whole_blocks_is_loaded_whole_and_its_last_token_computed(
    pair: tuple[EngineProcess, EngineProcess],
) -> None:
    asked = prompt("whole", 10, more=0)
    first, second = pair
    (computed,) = first.generate(asked)
    first.settle()
    (loaded,) = second.generate(asked)
    assert loaded.cached == len(asked) - 1
    assert loaded.tokens == computed.tokens


def test_what_one_engine_has_decoded_is_anothers_prompt(pair: tuple[EngineProcess, EngineProcess]) -> None:
    talk = prompt("talk", 8)
    for turn in range(3):
        speaker, listener = pair[turn % 2], pair[1 - turn % 2]
        (answer,) = speaker.generate(talk, max_tokens=40)
        speaker.settle()
        talk = talk + answer.tokens + prompt(turn, 1)
        (found,) = listener.generate(talk, max_tokens=1)
        assert found.cached >= whole(len(talk) - BLOCK_TOKENS - 5)
        listener.settle()


def test_requests_at_once_share_their_beginning(
    pair: tuple[EngineProcess, EngineProcess], reference: EngineProcess
) -> None:
    first, second = pair
    common = prompt("common", 12, more=0)
    asked = [common + prompt(i, i) for i in range(6)]
    first.generate(*asked[:3])
    first.settle()
    found = second.generate(*asked, max_tokens=12)
    assert all(output.cached >= whole(len(common)) for output in found)
    # Requests that ran at the same time may end in another order.
    want = [reference.generate(each, max_tokens=12)[0].tokens for each in asked]
    assert sorted(output.tokens for output in found) == sorted(want)


def test_windows_and_full_attention_side_by_side(windows: list[EngineProcess]) -> None:
    first, second, alone = windows
    asked = prompt("windows", 20)
    (computed,) = first.generate(asked, max_tokens=24)
    first.settle()
    (loaded,) = second.generate(asked, max_tokens=24)
    assert (computed.cached, loaded.cached) == (0, whole(len(asked)))
    assert computed.tokens == loaded.tokens == alone.generate(asked, max_tokens=24)[0].tokens
    longer = asked + computed.tokens + prompt("more", 4)
    (found,) = second.generate(longer)
    assert found.cached >= whole(len(asked))
    assert found.tokens == alone.generate(longer)[0].tokens


def test_a_window_that_is_lost_means_a_shorter_hit_and_no_wrong_answer(
    windows: list[EngineProcess], pool: Pool
) -> None:
    first, second, alone = windows
    asked = prompt("lost window", 20)
    first.generate(asked)
    first.settle()
    keyspaces = [bytes.fromhex(digest) for digest in first.ask("keyspaces")["digests"]]
    last = bytes.fromhex(first.ask("hashes", prompt=asked)["hashes"][19])
    assert sum(pool.client.remove(keyspace, [last], force=True).count for keyspace in keyspaces[:1]) == 1
    (found,) = second.generate(asked)
    assert 0 < found.cached < whole(len(asked))
    assert found.tokens == alone.generate(asked)[0].tokens


def test_a_model_of_another_window_shares_nothing(
    windows: list[EngineProcess], nursery: Nursery, pool: Pool, tmp_path: Path
) -> None:
    asked = prompt("another window", 10)
    windows[0].generate(asked)
    windows[0].settle()
    model = make_tiny_model(tmp_path / "tiny", window=64)
    with nursery.engine(model, pool.connector()) as other:
        assert other.generate(asked)[0].cached == 0
