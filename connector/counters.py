"""Numbers of one half, added up between two looks. Thread-safe: I/O threads count too."""

from __future__ import annotations

import threading

from moonpool.schemas.metrics import ENGINE_METRICS, ENGINE_PREFIX, Metric

Stats = dict[str, float | list[float]]
"""By key_of(): amounts to be added, values of gauges, and of histograms each value."""

METRICS: dict[str, Metric] = {
    name.removeprefix(ENGINE_PREFIX).removesuffix("_total"): metric for name, metric in ENGINE_METRICS.items()
}
"""The engine's metrics by the names that they have in here."""


def key_of(name: str, *labels: str) -> str:
    """What a metric of METRICS with these labels is called in Stats."""
    assert len(labels) == len(METRICS[name].labels), name
    return "/".join((name, *labels))


class Counters:
    """Adds up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}

    def add(self, name: str, amount: float = 1, *labels: str) -> None:
        """Raises a counter of METRICS."""
        key = key_of(name, *labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        with self._lock:
            values, self._values = self._values, {}
        return values
