"""Hybrid models: layers that keep a state beside full attention. vLLM keeps snapshots at ends of prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pool import Pool
from support.tiny_model import make_tiny_model
from support.vllm_engines import BLOCK_TOKENS, EngineProcess, Nursery, prompt

pytestmark = pytest.mark.vllm

BLOCKS = 20
"""Prompts have one token more: it is computed right after the state, and a wrong state changes what follows it."""
HIT = BLOCKS * BLOCK_TOKENS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("states") / "tiny", states=True)


@pytest.fixture(scope="module")
def engines(nursery: Nursery, model: Path, pool: Pool) -> Iterator[list[EngineProcess]]:
    """Two engines of one pool, and one without."""
    started = [nursery.engine(model, pool.connector()), nursery.engine(model, pool.connector())]
    started.append(nursery.engine(model))
    yield started
    for engine in started:
        engine.kill()


def test_a_prefix_is_loaded_with_the_state_that_ends_it(engines: list[EngineProcess]) -> None:
    first, second, alone = engines
    asked = prompt("states", BLOCKS, more=1)
    (computed,) = first.generate(asked, max_tokens=40)
    first.settle()
    (loaded,) = second.generate(asked, max_tokens=40)
    assert (computed.cached, loaded.cached) == (0, HIT)
    assert computed.tokens == loaded.tokens == alone.generate(asked, max_tokens=40)[0].tokens
    longer = asked + computed.tokens + prompt("more", 2, more=1)
    want = alone.generate(longer)[0].tokens
    for engine, cached in ((second, HIT), (first, len(longer) // BLOCK_TOKENS * BLOCK_TOKENS)):
        engine.settle()
        engine.forget()
        (found,) = engine.generate(longer)
        assert (found.cached, found.tokens) == (cached, want)
        engine.settle()


def test_where_no_snapshot_ends_nothing_is_loaded(engines: list[EngineProcess]) -> None:
    first, second, alone = engines
    asked = prompt("between", BLOCKS)
    first.generate(asked)
    first.settle()
    other = asked[: HIT // 2] + prompt("another end", 3)
    (found,) = second.generate(other)
    assert found.cached == 0, "ten blocks of attention are there, but no state after them"
    assert found.tokens == alone.generate(other)[0].tokens


def test_a_state_that_is_lost_is_computed_and_saved_again(engines: list[EngineProcess], pool: Pool) -> None:
    first, second, alone = engines
    asked = prompt("lost state", BLOCKS, more=1)
    first.generate(asked)
    first.settle()
    keyspaces = [bytes.fromhex(digest) for digest in first.ask("keyspaces")["digests"]]
    end = bytes.fromhex(first.ask("hashes", prompt=asked)["hashes"][-1])
    counts = [pool.client.remove(keyspace, [end], force=True).count for keyspace in keyspaces]
    assert sum(counts) == len(keyspaces) > 1
    want = alone.generate(asked)[0].tokens
    (found,) = second.generate(asked)
    assert (found.cached, found.tokens) == (0, want)
    second.settle()
    first.forget()
    (found,) = first.generate(asked)
    assert (found.cached, found.tokens) == (HIT, want)


def test_without_prefix_caching_the_pool_is_off(nursery: Nursery, model: Path, pool: Pool) -> None:
    """There is only the running state then, in a block as long as the model's longest sequence."""
    asked = prompt("none", 4)
    with nursery.engine(model, pool.connector(), enable_prefix_caching=False) as engine:
        outputs = [engine.generate(asked)[0] for _ in range(2)]
        assert outputs[0].tokens == outputs[1].tokens
        assert [output.cached for output in outputs] == [0, 0]
        assert engine.log().count("the pool is not used") in (1, 2), "scheduler and worker say it once each"
