"""What a benchmark says: one Result a (case, subject), the same in JSON and in the table."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """One measured case. `subject`: moonpool, mooncake, redis, lmcache or limit. Ratios over 1 are better than
    what they are compared with; None where nothing was compared. `verified`: the contents were checked."""

    case: str
    group: str
    subject: str
    median: float
    p99: float
    unit: str
    samples: int
    ratio_to_mooncake: float | None = None
    ratio_to_limit: float | None = None
    verified: bool = False


Group = Callable[[], list[Result]]
"""A group of cases: runs them all and returns what it saw."""


def summarise(
    case: str, group: str, subject: str, samples: Sequence[float], unit: str, verified: bool
) -> Result:
    """Median and 99th percentile of `samples` (which has two values or more)."""
    ordered = sorted(samples)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return Result(
        case, group, subject, statistics.median(ordered), p99, unit, len(ordered), verified=verified
    )


def machine_facts() -> dict[str, Any]:
    """What the numbers depend on."""
    model = ""
    with open("/proc/cpuinfo") as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_1min": os.getloadavg()[0],
    }


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """The document that `--json` prints."""
    return {"machine": machine_facts(), "cases": [asdict(result) for result in results]}
