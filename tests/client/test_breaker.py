"""The circuit breaker, driven by an explicit clock."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.errors import DeadlineExceeded, RpcFailed, Unavailable
from moonpool.store_client.breaker import BreakerState, CircuitBreaker
from moonpool.store_client.guard import Guard


def test_one_failure_costs_nothing_more_until_a_probe_succeeds() -> None:
    breaker = CircuitBreaker("master", retry_s=1.0)
    breaker.before_call(0.0)
    breaker.failed(2.0)
    with pytest.raises(Unavailable, match=r"asked again in 0\.5 s"):
        breaker.before_call(2.5)
    breaker.before_call(3.0)  # the probe
    with pytest.raises(Unavailable):
        breaker.before_call(3.1)  # one probe at a time
    breaker.failed(3.5)
    with pytest.raises(Unavailable):
        breaker.before_call(4.4)
    breaker.before_call(4.6)
    breaker.succeeded()
    breaker.before_call(4.6)
    assert breaker.state(4.6) is BreakerState.CLOSED


def test_a_probe_that_never_comes_back_is_given_up() -> None:
    breaker = CircuitBreaker("node", retry_s=1.0, probe_s=5.0)
    breaker.failed(0.0)
    breaker.before_call(1.0)
    with pytest.raises(Unavailable):
        breaker.before_call(5.9)
    breaker.before_call(6.0)


def test_a_probe_that_had_no_time_leaves_the_next_call_to_probe() -> None:
    breaker = CircuitBreaker("master", retry_s=1.0)
    breaker.failed(0.0)
    breaker.before_call(1.0)
    breaker.undecided(1.01)
    breaker.before_call(1.02)
    with pytest.raises(Unavailable):
        breaker.before_call(1.03)
    breaker.succeeded()
    breaker.undecided(1.04)
    assert breaker.state(1.05) is BreakerState.CLOSED


def test_a_guard_does_not_hold_a_short_deadline_against_its_peer() -> None:
    guard = Guard("master", retry_s=0.01)

    def call(error: Exception) -> None:
        with pytest.raises(type(error)), guard.call(time.monotonic()):
            raise error

    call(RpcFailed(peer="master", reason="reset"))
    time.sleep(0.02)
    call(DeadlineExceeded(peer="master", what="Match", timeout_s=0.001))
    with guard.call(time.monotonic()):
        pass  # the master is asked, though the probe before had no time for an answer


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["call", "ok", "fail"]), st.floats(0, 3)), min_size=1, max_size=60))
def test_it_opens_after_a_failure_and_lets_one_probe_out_a_pause(steps: list[tuple[str, float]]) -> None:
    breaker, now_s, failed_s = CircuitBreaker("peer", retry_s=1.0, probe_s=2.0), 0.0, None
    for step, pause_s in steps:
        now_s += pause_s
        if step == "ok":
            breaker.succeeded()
            failed_s = None
        elif step == "fail":
            breaker.failed(now_s)
            failed_s = now_s
        else:
            try:
                breaker.before_call(now_s)
            except Unavailable:
                assert failed_s is not None
            else:
                assert failed_s is None or now_s >= failed_s + 1.0
        breaker.validate()
