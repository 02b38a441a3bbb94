"""The clock that leaves out the master's own pauses."""

from __future__ import annotations

import pytest

from moonpool.master.steady_clock import STEP_MAX_S, SteadyClock


def test_small_steps_are_real_time_and_large_ones_are_cut() -> None:
    readings = iter([100.0, 100.0, 100.2, 100.5, 160.5, 160.6])
    clock = SteadyClock(lambda: next(readings))
    start_s = clock.now_s()
    elapsed_s = [clock.now_s() - start_s for _ in range(4)]
    assert elapsed_s == pytest.approx([0.2, 0.5, 0.5 + STEP_MAX_S, 0.6 + STEP_MAX_S])
