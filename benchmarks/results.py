"""What a benchmark says: one Result a (case, subject), the same in JSON and in the table."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from typing import Any

RATES = ("GB/s", "objects/s")
"""Units of which more is better; of all others less is."""


@dataclass(frozen=True, slots=True)
class Result:
    """One measured case. `subject`: moonpool, mooncake, redis, lmcache or limit. Ratios over 1 are better than
    what they are compared with; None where nothing was compared. `verified`: the contents were checked. `p99`: what
    99 % of the samples are at least as good as. `low`, `high`: the quartiles, for the table alone."""

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
    low: float | None = None
    high: float | None = None

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit in RATES

    def ratio_to(self, other: Result | None) -> float | None:
        """How many times as good this is."""
        if other is None or not other.median or not self.median:
            return None
        ratio = self.median / other.median
        return ratio if self.is_rate else 1 / ratio

    def better_than(self, other: Result) -> bool:
        """By their medians."""
        return (self.median > other.median) == self.is_rate


def summarise(
    case: str, group: str, subject: str, samples: Sequence[float], unit: str, verified: bool
) -> Result:
    """Median, quartiles and 99th percentile of one sample or more."""
    ordered = sorted(samples, reverse=unit in RATES)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    low, high = sorted((at(0.25), at(0.75)))
    return Result(
        case, group, subject, statistics.median(ordered), at(0.99), unit, len(ordered),
        verified=verified, low=low, high=high,
    )  # fmt: skip


def compare(found: Mapping[str, Result], sums: str) -> list[Result]:
    """The results of one case by subject, with their ratios. `sums`: the subject that makes a case of its own."""
    mooncake, limit = found.get("mooncake"), found.get("limit")
    compared = []
    for name, result in found.items():
        own = result.subject in ("mooncake", "limit")
        compared.append(
            replace(
                result,
                case=f"{result.case}_sums" if name == sums else result.case,
                subject="moonpool" if name == sums else result.subject,
                ratio_to_mooncake=None if own else result.ratio_to(mooncake),
                ratio_to_limit=None if name == "limit" else result.ratio_to(limit),
            )
        )
    return compared


def machine_facts() -> dict[str, Any]:
    """What the numbers depend on."""
    model = ""
    with open("/proc/cpuinfo") as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "arch": platform.machine(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_1min": os.getloadavg()[0],
        "versions": {name: version for name in ("moonpool", *MOONCAKE_WHEELS) if (version := _version(name))},
    }


MOONCAKE_WHEELS = (
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine-non-cuda",
)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """The document that `--json` prints."""
    cases = [asdict(result) for result in results]
    for case in cases:
        del case["low"], case["high"]
    return {"machine": machine_facts(), "cases": cases}
