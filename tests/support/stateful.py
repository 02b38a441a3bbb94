"""Settings of state machines that say how many steps they take in all."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from support.soak import SOAK


def stateful_settings(steps: int, steps_an_example: int = 100) -> settings:
    """For a state machine that is to take some `steps` steps in all, always the same ones."""
    return settings(
        max_examples=max(1, SOAK * steps // steps_an_example),
        stateful_step_count=steps_an_example,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
