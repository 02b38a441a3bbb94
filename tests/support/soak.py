"""How long randomised tests run: MOONPOOL_SOAK=1 makes them ten times as long."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SOAK = 10 if os.environ.get("MOONPOOL_SOAK") == "1" else 1


def stateful_settings(steps: int, steps_an_example: int = 100) -> settings:
    """For a state machine that is to take some `steps` steps in all, always the same ones."""
    return settings(
        max_examples=max(1, SOAK * steps // steps_an_example),
        stateful_step_count=steps_an_example,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
