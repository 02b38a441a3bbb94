"""Faults of a pool around real vLLM engines: whatever breaks, answers are right, and nobody waits long.

`want` is always what an engine without a pool answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest
from support.damage import Damage, change_owner, flip_payload, shorten
from support.pool import Pool
from support.processes import ServerProcess
from support.vllm_engines import BLOCK_TOKENS, EngineProcess, Output, StartEngine, prompt
from support.waiting import at_most, soon

pytestmark = pytest.mark.vllm

BLOCKS = 8
MATCH_TIMEOUT_S = 3.0
LOAD_TIMEOUT_S = 3.0
"""Longer than a healthy pool takes on a busy machine."""
SHUN_S = 1.0
BREAKER_S = 1.5
"""Longer than clients leave a server alone that failed: what a test does next, it does with healthy ones."""
STEP_HELD_UP_S = 0.005
"""By half of the steps at most: the others may wait for the interpreter's lock while who holds it isn't given a core."""


@pytest.fixture(scope="module")
def writer(start: StartEngine) -> EngineProcess:
    return start()


@pytest.fixture(scope="module")
def reader(start: StartEngine) -> EngineProcess:
    """Reads over tcp, and puts nothing into the pool."""
    extra = {
        "transport": "tcp",
        "match_timeout_s": MATCH_TIMEOUT_S,
        "load_timeout_s": LOAD_TIMEOUT_S,
        "shun_s": SHUN_S,
    }
    engine = start("kv_consumer", extra=extra)
    engine.ask("watch_loads")
    return engine


@contextmanager
def frozen(server: ServerProcess) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()
        time.sleep(BREAKER_S)


def save(engine: EngineProcess, *prompts: list[int]) -> None:
    engine.generate(*prompts)
    engine.settle()


def same(found: list[Output], want: list[Output]) -> None:
    assert [output.reason for output in found] == ["length"] * len(want)
    assert [output.tokens for output in found] == [output.tokens for output in want]


def test_the_reader_reads(writer: EngineProcess, reader: EngineProcess, reference: EngineProcess) -> None:
    asked = prompt("control", BLOCKS)
    save(writer, asked)
    found = reader.generate(asked)
    same(found, reference.generate(asked))
    assert found[0].cached == BLOCKS * BLOCK_TOKENS
    assert reader.ask("take_watched_loads")["loads"][0]["bad"] == []
    reader.settle()


def test_blocks_that_are_found_and_cannot_be_read_end_no_request_and_no_patience(
    pool: Pool, writer: EngineProcess, reader: EngineProcess, reference: EngineProcess
) -> None:
    """With vLLM's default load failure policy, which would end each request with an error."""
    asked = [prompt("shared", BLOCKS, 0) + prompt(i, 1) for i in range(3)]
    save(writer, *asked)
    before = reader.counted("load_requests")
    with frozen(pool.node):
        began_s = time.monotonic()
        found = reader.generate(*asked)
        took_s = time.monotonic() - began_s
    same(found, reference.generate(*asked))
    loads = reader.ask("take_watched_loads")["loads"]
    assert loads and all(len(load["blocks"]) >= BLOCKS for load in loads)
    # Every block that was not loaded was told to vLLM, and each request was let in again twice at most.
    assert all(sorted(load["blocks"]) == load["bad"] for load in loads)
    assert 1 <= reader.counted("load_requests") - before <= 2 * len(asked)
    assert took_s < at_most(2 * LOAD_TIMEOUT_S * len(asked))
    reader.settle()


def test_a_bug_in_a_load_thread_ends_in_a_computation(
    writer: EngineProcess, reader: EngineProcess, reference: EngineProcess
) -> None:
    asked = prompt("bug", BLOCKS)
    save(writer, asked)
    reader.ask("break_loads", times=1)
    same(reader.generate(asked), reference.generate(asked))
    (load,) = reader.ask("take_watched_loads")["loads"]
    assert sorted(load["blocks"]) == load["bad"]
    assert len(load["bad"]) == BLOCKS
    reader.settle()


@pytest.mark.parametrize("how", [flip_payload, shorten, change_owner])
def test_a_damaged_object_is_a_miss_and_is_told_once_for_all_engines(
    how: Damage, pool: Pool, writer: EngineProcess, reader: EngineProcess, reference: EngineProcess
) -> None:
    asked = prompt(how.__name__, BLOCKS)
    save(writer, asked)
    for block in (2, 5):
        pool.damage(writer, asked, block, how)
    want = reference.generate(asked)
    same(reader.generate(asked), want)
    (load,) = reader.ask("take_watched_loads")["loads"]
    assert {load["blocks"][2], load["blocks"][5]} == set(load["bad"])
    reader.settle()

    # The other engine doesn't run into it: the pool has heard of it. What is missing it saves itself, unless the
    # reader, who asked the pool again for the rest of its request, has done so already.
    writer.forget()
    failed = writer.counted("load_failed_blocks")
    found = writer.generate(asked)
    same(found, want)
    assert found[0].cached in (2 * BLOCK_TOKENS, BLOCKS * BLOCK_TOKENS)
    assert writer.counted("load_failed_blocks") == failed

    writer.forget()
    reader.forget()
    time.sleep(SHUN_S)
    found = reader.generate(asked)
    same(found, want)
    assert found[0].cached == BLOCKS * BLOCK_TOKENS
    assert reader.ask("take_watched_loads")["loads"][0]["bad"] == []


def test_a_dead_owner_is_a_miss_and_its_blocks_come_back_with_it(
    pool: Pool, writer: EngineProcess, reader: EngineProcess, reference: EngineProcess
) -> None:
    asked, late = prompt("dead", BLOCKS), prompt("dead while loading", BLOCKS)
    save(writer, asked, late)
    reader.ask("take_watched_loads")
    reader.ask("hold", what="get_blocks")
    reader.ask("begin", prompt=late, max_tokens=8)
    reader.ask("step", until="gate get_blocks")
    pool.node.kill()
    try:
        began_s = time.monotonic()
        reader.ask("release", what="get_blocks")
        found = [Output(**output) for output in reader.ask("finish")["outputs"]]
        found += reader.generate(asked)
        took_s = time.monotonic() - began_s
    finally:
        pool.node.start()
    same(found, reference.generate(late, asked))
    assert [output.cached for output in found] == [0, 0]
    assert took_s < at_most(2 * LOAD_TIMEOUT_S + MATCH_TIMEOUT_S)
    reader.settle()

    reader.forget()
    end_s = soon(60)
    while reader.generate(asked)[0].cached < BLOCKS * BLOCK_TOKENS:
        assert time.monotonic() < end_s, "the node's blocks did not come back"
        reader.forget()
        time.sleep(0.2)
    reader.ask("take_watched_loads")
    reader.settle()


def test_a_frozen_master_blocks_no_step_and_costs_one_deadline(
    pool: Pool, writer: EngineProcess, reader: EngineProcess, reference: EngineProcess
) -> None:
    asked = [prompt(f"frozen {i}", BLOCKS) for i in range(4)]
    save(writer, *asked)
    want = [reference.generate(one)[0] for one in asked]
    reader.ask("watch_steps")
    with frozen(pool.master):
        found = [reader.generate(one)[0] for one in asked]
    same(found, want)
    blocked_s = reader.ask("take_watched_steps")["blocked_s"]
    assert median(blocked_s) < STEP_HELD_UP_S
    assert max(blocked_s) < MATCH_TIMEOUT_S / 10, "a step waited for the master"
    slow_s = max(output.ttft_s for output in want)
    extra_s = [output.ttft_s - slow_s for output in found]
    assert max(extra_s) < at_most(MATCH_TIMEOUT_S)
    assert reader.counted("match_timeouts") + reader.counted("match_failures") >= 1
    reader.settle()


def test_models_of_one_name_share_nothing(
    writer: EngineProcess,
    namesake: Path,
    start: StartEngine,
) -> None:
    asked = prompt("namesake", BLOCKS)
    save(writer, asked)
    other = start(of=namesake)
    found = other.generate(asked)
    assert found[0].cached == 0
    same(found, other.generate(asked, salt="computed anew"))
    assert found[0].tokens != writer.generate(asked)[0].tokens


def test_dtypes_share_nothing_and_reset_clears_one_keyspace(
    pool: Pool,
    writer: EngineProcess,
    reader: EngineProcess,
    start: StartEngine,
) -> None:
    asked = prompt("dtype", BLOCKS)
    save(writer, asked)
    half = start(dtype="bfloat16")
    found = half.generate(asked)
    assert found[0].cached == 0
    same(found, half.generate(asked, salt="computed anew"))

    half.forget()
    assert writer.ask("forget", connector=True)["done"]
    assert half.generate(asked)[0].cached == BLOCKS * BLOCK_TOKENS
    assert reader.generate(asked)[0].cached == 0
    reader.settle()

    # The engine that was reset goes on with the pool.
    save(writer, asked)
    writer.forget()
    assert writer.generate(asked)[0].cached == BLOCKS * BLOCK_TOKENS
