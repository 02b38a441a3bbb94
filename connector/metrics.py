"""The connector's numbers as vLLM wants them: KVConnectorStats, and metrics in its Prometheus registry."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from moonpool.connector.counters import METRICS, Stats
from moonpool.schemas.metrics import ENGINE_PREFIX, Metric, MetricKind

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Buckets of times."""

TYPES = {MetricKind.COUNTER: Counter, MetricKind.GAUGE: Gauge, MetricKind.HISTOGRAM: Histogram}


class MoonpoolStats(KVConnectorStats):  # type: ignore[misc] # vLLM is untyped here
    """Stats by the keys of counters.key_of. Scheduler and workers make the same class, so that they add up."""

    data: Stats

    def reset(self) -> None:
        """All to zero."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds another interval or another worker."""
        for key, value in other.data.items():
            mine = self.data.get(key, 0)
            if isinstance(value, list):
                self.data[key] = [*mine, *value] if isinstance(mine, list) else value
            elif _kind(key) is MetricKind.GAUGE:
                self.data[key] = max(mine, value)
            else:
                self.data[key] = mine + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log line: what happened, without what didn't. Of times the mean."""
        means = {
            key: sum(value) / len(value) if isinstance(value, list) else value
            for key, value in self.data.items()
            if value
        }
        return {key: round(value, 6) for key, value in means.items()}

    def is_empty(self) -> bool:
        """Whether nothing is told. A gauge that is 0 again is something."""
        return not self.data


class MoonpoolPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The metrics of ENGINE_METRICS, with vLLM's labels before their own."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._engines = per_engine_labelvalues
        self._metrics: dict[str, Any] = {
            name: _make(name, metric, metric_types, labelnames) for name, metric in METRICS.items()
        }
        self._children: dict[tuple[int, str], Any] = {}
        for engine in per_engine_labelvalues:
            for name, metric in METRICS.items():
                if not metric.labels:
                    self._child(engine, name)  # shown as 0 from the start

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Counts one interval. Names of another version of ours are passed over."""
        for key, value in transfer_stats_data.items():
            kind = _kind(key)
            if kind is None:
                continue
            child = self._child(engine_idx, key)
            if kind is MetricKind.HISTOGRAM:
                for one in value:
                    child.observe(one)
            elif kind is MetricKind.GAUGE:
                child.set(value)
            elif value:
                child.inc(value)

    def _child(self, engine: int, key: str) -> Any:
        child = self._children.get((engine, key))
        if child is None:
            name, *labels = key.split("/")
            child = self._metrics[name].labels(*self._engines[engine], *labels)
            self._children[engine, key] = child
        return child


def _kind(key: str) -> MetricKind | None:
    """None where no metric of ours has that name and so many labels."""
    name, *labels = key.split("/")
    metric = METRICS.get(name)
    return metric.kind if metric is not None and len(labels) == len(metric.labels) else None


def _make(name: str, metric: Metric, metric_types: dict[type, type], labelnames: list[str]) -> Any:
    options: dict[str, Any] = {}
    if metric.kind is MetricKind.HISTOGRAM:
        options["buckets"] = SECONDS
    elif metric.kind is MetricKind.GAUGE:
        options["multiprocess_mode"] = "mostrecent"  # as vLLM's own gauges
    return metric_types[TYPES[metric.kind]](
        name=f"{ENGINE_PREFIX}{name}",
        documentation=f"Moonpool: {metric.help}.",
        labelnames=[*labelnames, *metric.labels],
        **options,
    )
