"""Both halves together, over a fake engine and a fake pool."""

from __future__ import annotations

from typing import Any

import pytest
from support.connector_engine import FULL, ONLY_WINDOW, WINDOW, FakeEngine
from support.connector_parts import BLOCK_TOKENS, Request

from moonpool.connector.fake_pool import FakePool
from moonpool.connector.tracked import Roles
from moonpool.schemas.config import ConnectorSettings
from moonpool.schemas.messages import Status

PROMPT = [i * 7 % 101 for i in range(50)]
WHOLE_BLOCKS = 48

shapes = pytest.mark.parametrize(
    "options",
    [{}, {"ranks": 2}, {"ranks": 2, "replicas": 2}, {"groups": (FULL, WINDOW)}, {"groups": (ONLY_WINDOW,)}],
    ids=["one group", "two shards", "two replicas", "hybrid", "window only"],
)


@shapes
def test_another_engine_loads_what_one_has_saved(options: dict[str, Any]) -> None:
    pool = FakePool()
    first = FakeEngine(pool, **options).ask("a", PROMPT)
    assert first.from_pool == 0
    second = FakeEngine(pool, **options).ask("b", PROMPT)
    assert second.from_pool == WHOLE_BLOCKS
    assert second.tokens == first.tokens


def test_a_prompt_that_is_there_to_its_last_token_still_computes_one() -> None:
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT[:WHOLE_BLOCKS])
    assert FakeEngine(pool).ask("b", PROMPT[:WHOLE_BLOCKS]).from_pool == WHOLE_BLOCKS - 1


def test_a_hybrid_hit_ends_where_all_groups_can_serve_it() -> None:
    pool = FakePool()
    FakeEngine(pool, groups=(FULL, WINDOW)).ask("a", PROMPT)
    window = next(k for k, s in pool.specs.items() if dict(s.identity)["group"].startswith("1"))
    last = max((k for k in pool.blocks if k[0] == window), key=lambda k: list(pool.blocks).index(k))
    del pool.blocks[last]
    found = FakeEngine(pool, groups=(FULL, WINDOW)).ask("b", PROMPT).from_pool
    assert 0 < found < WHOLE_BLOCKS


def test_decoded_blocks_are_saved_too() -> None:
    pool = FakePool()
    first = FakeEngine(pool).ask("a", PROMPT, output_tokens=30)
    second = FakeEngine(pool).ask("b", first.tokens)
    assert second.from_pool >= 72


@pytest.mark.parametrize(
    ("role", "lookup", "save_decode", "loads", "saves"),
    [
        ("kv_both", True, False, True, True),
        ("kv_producer", True, False, True, True),
        ("kv_producer", False, False, False, True),
        ("kv_consumer", True, False, True, False),
        ("kv_consumer", True, True, True, True),
    ],
)
def test_roles(role: str, lookup: bool, save_decode: bool, loads: bool, saves: bool) -> None:
    roles = Roles.of(role, lookup=lookup, save_decode_cache=save_decode)
    assert (roles.loads, roles.saves) == (loads, saves)
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT)
    before = len(pool.blocks)
    engine = FakeEngine(pool, roles=roles)
    assert engine.ask("b", PROMPT).from_pool == (WHOLE_BLOCKS if loads else 0)
    engine.ask("c", PROMPT[::-1])
    assert (len(pool.blocks) > before) == saves


def test_a_pool_that_is_away_costs_nothing_but_misses() -> None:
    pool = FakePool()
    pool.away = True
    engine = FakeEngine(pool)
    assert engine.ask("a", PROMPT).from_pool == 0
    assert engine.count("match_failures") == 1
    pool.away = False
    engine.clock.advance(10.0)
    engine.ask("b", PROMPT[::-1])
    assert pool.blocks


def test_an_answer_that_does_not_come_is_given_up_in_time() -> None:
    pool = FakePool()
    engine = FakeEngine(pool)
    request = engine.add(Request("a", list(PROMPT), 1))
    for _ in range(20):
        engine.step()
    assert request.state == "waiting"
    engine.clock.advance(0.5)
    engine.step()
    assert request.state == "running"
    assert engine.count("match_timeouts") == 1
    engine.run()


def test_an_old_answer_is_not_trusted() -> None:
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT)
    engine = FakeEngine(pool)
    request = Request("b", list(PROMPT), 1)
    engine.ask("warm", PROMPT[::-1][:8])
    engine.half.arrive(request, None)
    engine.run_jobs()
    assert engine.half.offer(request, 0) == WHOLE_BLOCKS
    engine.clock.advance(2.5)
    assert engine.half.offer(request, 0) is None
    engine.run_jobs()
    assert engine.half.offer(request, 0) == WHOLE_BLOCKS


def test_a_short_hit_is_not_worth_a_load() -> None:
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT[:12])
    engine = FakeEngine(pool, settings=ConnectorSettings(min_hit_tokens=13))
    assert engine.ask("b", PROMPT).from_pool == 0


@shapes
@pytest.mark.parametrize("status", [Status.MISSING, Status.FAILED, Status.CORRUPT])
def test_blocks_that_fail_to_load_are_computed(options: dict[str, Any], status: Status) -> None:
    pool = FakePool()
    FakeEngine(pool, **options).ask("a", PROMPT)
    hashes = Request("", list(PROMPT), 0).block_hashes
    bad = {hashes[at] for at in (4, 9, 10)}
    pool.bad_get = lambda key: status if key[2] in bad else None
    engine = FakeEngine(pool, **options)
    request = engine.ask("b", PROMPT)
    assert request.errors > 0
    if options == {}:
        assert engine.count("load_failed_blocks") == 3  # every one is told, not the first only
    assert engine.count("load_failed_blocks") >= 1
    # Shunned now: the next request takes only what is before the gap, and fails no more.
    engine.forget()
    assert engine.ask("c", PROMPT).errors == 0


def test_every_load_failing_ends_in_a_plain_computation() -> None:
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT)
    pool.bad_get = lambda key: Status.MISSING
    engine = FakeEngine(pool)
    assert engine.ask("b", PROMPT).num_computed_tokens >= len(PROMPT)
    assert pool.calls.count("get_blocks") == 1


def test_a_failed_block_is_tried_again_later() -> None:
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT)
    engine = FakeEngine(pool)
    pool.bad_get = lambda key: Status.FAILED
    engine.ask("b", PROMPT)
    pool.bad_get = lambda key: None
    engine.forget()
    assert engine.ask("c", PROMPT).from_pool == 0
    engine.clock.advance(31.0)
    engine.forget()
    assert engine.ask("d", PROMPT).from_pool == WHOLE_BLOCKS


def test_an_abort_while_loading_saves_nothing_that_was_not_loaded() -> None:
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT)
    engine = FakeEngine(pool)
    request = engine.add(Request("b", list(PROMPT), 1))
    while request.state != "loading":
        for runner in engine.runners:
            if runner.name == "match":
                runner.run()
        engine.step()
    pool.blocks.clear()
    engine.clock.advance(31.0)  # nothing is known to be in the pool any more
    engine.abort(request)
    engine.run()
    assert not pool.blocks
    assert engine.blocks.references.count(0) == engine.blocks.capacity - 1


def test_without_space_saving_stops_but_for_probes_and_goes_on_when_there_is_some() -> None:
    pool = FakePool()
    pool.blocks_max = 3
    engine = FakeEngine(pool)
    for i in range(10):
        engine.ask(f"a{i}", [i, *PROMPT])
    assert pool.calls.count("put_blocks") <= 4  # two under way at the first failure, and a probe or two
    pool.blocks_max = 1000
    engine.clock.advance(9.0)
    engine.ask("b", [50, *PROMPT])
    engine.ask("c", [51, *PROMPT])
    engine.forget()
    assert FakeEngine(pool).ask("d", [51, *PROMPT]).from_pool == WHOLE_BLOCKS


def test_blocks_stay_held_until_all_ranks_are_done() -> None:
    pool = FakePool()
    engine = FakeEngine(pool, ranks=2)
    request = engine.add(Request("a", list(PROMPT), 0))
    while request.state != "done":
        for runner in engine.runners:
            if runner.name == "match":
                runner.run()
        engine.step()
    saves = [runner for runner in engine.runners if runner.name == "save"]
    assert engine.half.pending
    while saves[0].jobs:
        saves[0].run()
    engine.step()
    assert engine.half.pending
    assert sum(engine.blocks.references) > 1
    engine.run()
    assert sum(engine.blocks.references) == 1


def test_saves_hold_no_more_than_a_share_of_the_engines_blocks() -> None:
    engine = FakeEngine(FakePool(), capacity=40)
    for i in range(3):
        engine.add(Request(f"a{i}", [i, *PROMPT], 0))
    for _ in range(200):
        for runner in engine.runners:
            if runner.name == "match":
                runner.run()
        engine.step()
    assert not engine.requests
    assert sum(engine.blocks.references) - 1 <= 10
    assert engine.count("save_dropped_blocks") > 0


def test_a_block_seen_in_the_pool_is_not_offered_again_for_a_while() -> None:
    pool = FakePool()
    engine = FakeEngine(pool)
    engine.ask("a", PROMPT)
    puts = pool.calls.count("put_blocks")
    engine.ask("b", PROMPT)
    assert pool.calls.count("put_blocks") == puts
    pool.blocks.clear()
    engine.clock.advance(31.0)
    engine.ask("c", PROMPT)
    assert pool.blocks  # evicted from the pool, still in the engine: saved again


def test_leases_are_renewed_at_once_and_while_the_request_lives() -> None:
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT)
    engine = FakeEngine(pool)
    request = engine.add(Request("b", list(PROMPT), 1000))
    while request.state != "running":
        engine.run_jobs()
        engine.step()
    last = request.block_hashes[WHOLE_BLOCKS // BLOCK_TOKENS - 1]
    assert [block for _, block in pool.renewed] == [last]
    engine.clock.advance(3.0)
    engine.step()
    engine.run_jobs()
    assert [block for _, block in pool.renewed] == [last, last]
    engine.abort(request)
    engine.clock.advance(3.0)
    engine.run()
    assert len(pool.renewed) == 2


def test_other_weights_and_adapters_share_nothing() -> None:
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT)
    assert FakeEngine(pool, weights="other").ask("b", PROMPT).from_pool == 0
    engine = FakeEngine(pool)
    for name, adapter, found in (("c", "x", 0), ("d", "x", WHOLE_BLOCKS), ("e", "y", 0), ("f", "lost", 0)):
        engine.forget()
        request = engine.add(Request(name, list(PROMPT), 1), adapter)
        engine.run()
        assert request.from_pool == found, name
    assert len(pool.specs) == 4


def test_reset_clears_this_keyspace_only_and_asks_for_the_weights_again() -> None:
    pool = FakePool()
    engine, other = FakeEngine(pool), FakeEngine(pool, weights="other")
    engine.ask("a", PROMPT)
    other.ask("b", PROMPT)
    engine.weights = "updated"
    assert engine.half.reset()
    engine.forget()
    other.forget()
    assert engine.ask("c", PROMPT).from_pool == 0
    assert other.ask("d", PROMPT).from_pool == WHOLE_BLOCKS
    assert len(pool.specs) == 3


def test_ranks_that_disagree_switch_the_pool_off_not_the_engine_down() -> None:
    pool = FakePool()
    engine = FakeEngine(pool, ranks=2, replicas=2)
    engine.workers[1]._facts = lambda generation: _facts_of_another_size(generation)  # type: ignore[assignment]
    assert engine.ask("a", PROMPT).from_pool == 0
    assert not pool.blocks


def test_a_worker_that_knows_not_what_its_blocks_depend_on_ends_no_engine_and_delays_one_request() -> None:
    pool = FakePool()
    engine = FakeEngine(pool)
    asked: list[int] = []

    def strange_model(generation: int) -> Any:
        asked.append(generation)
        raise RuntimeError("a tensor without storage")

    engine.workers[0]._facts = strange_model
    assert engine.ask("a", PROMPT).from_pool == 0
    assert engine.count("match_timeouts") == 1
    request = engine.add(Request("b", list(PROMPT), 1))
    engine.step()
    assert request.state == "running", "nobody will ever answer: it need not wait"
    engine.run()
    assert asked == [1] and not pool.blocks


def test_requests_wait_for_answers_again_once_the_identity_is_known() -> None:
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT)
    engine = FakeEngine(pool)
    take = engine.workers[0].take_report
    engine.workers[0].take_report = lambda: None  # type: ignore[method-assign]
    assert engine.ask("b", PROMPT[::-1]).from_pool == 0
    engine.workers[0].take_report = take  # type: ignore[method-assign]
    engine.ask("c", PROMPT[::-1])
    assert engine.ask("d", PROMPT).from_pool == WHOLE_BLOCKS


def test_an_engine_of_another_make_switches_the_pool_off_not_the_engine_down() -> None:
    pool = FakePool()
    engine = FakeEngine(pool)

    def renamed(facts: Any) -> Any:
        raise AttributeError("no such field in this version")

    engine.half._make_identity = renamed
    assert engine.ask("a", PROMPT).from_pool == 0
    assert not pool.blocks


def test_a_load_that_found_no_thread_in_time_is_computed() -> None:
    pool = FakePool()
    FakeEngine(pool).ask("a", PROMPT)
    engine = FakeEngine(pool, settings=ConnectorSettings(load_timeout_s=1e-9))
    assert engine.ask("b", PROMPT).errors == 1
    assert engine.count("load_failed_blocks") > 0 and not engine.count("load_blocks")


def _facts_of_another_size(generation: int) -> Any:
    from moonpool.connector.records import RankFacts

    return RankFacts(generation, 0, (128,), ("layout",), "w")
