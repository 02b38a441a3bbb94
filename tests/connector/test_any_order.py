"""Requests, aborts, threads, evictions and faults in any order: every block read is right, and everything ends."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.connector_engine import FULL, ONLY_WINDOW, WINDOW, FakeEngine
from support.connector_parts import Request

from moonpool.connector.fake_pool import FakePool
from moonpool.schemas.messages import Status

EXAMPLES = 400 if os.environ.get("MOONPOOL_SOAK") else 25


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None)
@given(seed=st.integers(0, 1 << 30), shape=st.integers(0, 4))
def test_any_order_of_events_reads_right_blocks_and_ends(seed: int, shape: int) -> None:
    options: dict[str, Any] = [
        {},
        {"ranks": 2},
        {"ranks": 2, "replicas": 2},
        {"groups": (FULL, WINDOW), "capacity": 60},
        {"groups": (ONLY_WINDOW,)},
    ][shape]
    rng = random.Random(seed)
    pool = FakePool()
    engines = [FakeEngine(pool, **options) for _ in range(2)]
    prompts = [[rng.randrange(50) for _ in range(rng.randrange(1, 60))] for _ in range(3)]
    moves = _moves(rng, pool, engines, prompts)
    for _ in range(150):
        rng.choice(moves)()
    pool.bad_get = pool.bad_put = lambda key: None
    pool.away = False
    for engine in engines:
        engine.run()
        assert sum(engine.blocks.references) == 1, "a block is held for ever"


def _moves(
    rng: random.Random, pool: FakePool, engines: list[FakeEngine], prompts: list[list[int]]
) -> list[Callable[[], None]]:
    def add() -> None:
        prompt = rng.choice(prompts)[: rng.randrange(1, 60)] + [
            rng.randrange(50) for _ in range(rng.randrange(9))
        ]
        engine = rng.choice(engines)
        name = f"r{len(engine.requests) + len(engine.finished)}"
        engine.add(Request(name, prompt, rng.randrange(12)))

    def abort() -> None:
        engine = rng.choice(engines)
        if engine.requests:
            engine.abort(rng.choice(list(engine.requests.values())))

    def work() -> None:
        rng.choice(rng.choice(engines).runners).run()

    def evict() -> None:
        for key in rng.sample(sorted(pool.blocks), min(3, len(pool.blocks))):
            pool.blocks.pop(key, None)

    def trouble() -> None:
        pool.bad_get = (
            (lambda key: Status.FAILED if rng.random() < 0.3 else None) if rng.random() < 0.5 else _fine
        )
        pool.bad_put = (
            (lambda key: Status.NO_SPACE if rng.random() < 0.2 else None) if rng.random() < 0.5 else _fine
        )
        pool.away = rng.random() < 0.2

    def wait() -> None:
        for engine in engines:
            engine.clock.advance(rng.choice([0.1, 1.0, 5.0, 40.0]))

    steps = [engine.step for engine in engines]
    return [*steps * 6, *[work] * 8, *[add] * 2, abort, evict, trouble, wait]


def _fine(key: object) -> None:
    return None
