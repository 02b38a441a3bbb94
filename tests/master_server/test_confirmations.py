"""Waits for drops: confirmed, late, unknown, cancelled; and any interleaving of them."""

from __future__ import annotations

import asyncio
import time

from hypothesis import given, settings
from hypothesis import strategies as st
from support.waiting import at_most

from moonpool.master.confirmations import Confirmations

A, B, C = (b"a", 1), (b"b", 2), (b"c", 3)


async def test_a_wait_ends_with_its_last_confirmation() -> None:
    confirmations = Confirmations()
    waiting = confirmations.expect([A, B], timeout_s=5)
    confirmations.confirm([A, C])
    await asyncio.sleep(0)
    assert not waiting.done()
    confirmations.confirm([B])
    assert await waiting == []
    assert len(confirmations) == 0


async def test_what_is_late_is_named_in_order() -> None:
    confirmations = Confirmations()
    start_s = time.monotonic()
    waiting = confirmations.expect([C, A, B], timeout_s=0.05)
    confirmations.confirm([A])
    assert await waiting == [C, B]
    assert 0.04 < time.monotonic() - start_s < at_most(0.05)
    confirmations.confirm([B, C])
    assert len(confirmations) == 0


async def test_nothing_to_wait_for_is_done_at_once() -> None:
    assert await Confirmations().expect([], timeout_s=5) == []


async def test_a_wait_that_nobody_awaits_any_more_is_forgotten_by_its_timer() -> None:
    confirmations = Confirmations()
    confirmations.expect([A], timeout_s=0.02).cancel()
    await asyncio.sleep(0.05)
    assert len(confirmations) == 0


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 5), min_size=1)), max_size=30))
def test_any_interleaving(steps: list[tuple[bool, set[int]]]) -> None:
    async def run() -> None:
        confirmations = Confirmations()
        model: list[tuple[set[int], asyncio.Future[list[tuple[bytes, int]]]]] = []
        for is_wait, drops in steps:
            keys = [(b"s", drop) for drop in drops]
            if is_wait:
                model.append((set(drops), confirmations.expect(keys, timeout_s=0)))
            else:
                confirmations.confirm(keys)
                for still_open, _ in model:
                    still_open -= drops
            confirmations.validate()
            assert all(future.done() == (not still_open) for still_open, future in model)
        for still_open, future in model:
            assert {drop for _, drop in await future} == still_open
        assert len(confirmations) == 0

    asyncio.run(run())
