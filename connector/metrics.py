"""The connector's numbers as vLLM wants them: KVConnectorStats, and Prometheus counters."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from moonpool.connector.counters import NAMES


class MoonpoolStats(KVConnectorStats):  # type: ignore[misc] # vLLM is untyped here
    """Sums by the names of counters.NAMES. Scheduler and workers make the same class, so that they add up."""

    data: dict[str, float]

    def reset(self) -> None:
        """All to zero."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds another interval or another worker."""
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log line: what happened, without what didn't."""
        return {name: round(amount, 3) for name, amount in self.data.items() if amount}

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not any(self.data.values())


class MoonpoolPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """One counter a name, `vllm:moonpool_<name>_total`, with vLLM's labels."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter = metric_types[Counter]
        self._counters: dict[str, dict[int, Any]] = {}
        for name, text in NAMES.items():
            metric = counter(
                name=f"vllm:moonpool_{name}", documentation=f"Moonpool: {text}.", labelnames=labelnames
            )
            self._counters[name] = {
                engine: metric.labels(*values) for engine, values in per_engine_labelvalues.items()
            }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Counts one interval. Names of another version of ours are passed over."""
        for name, amount in transfer_stats_data.items():
            engines = self._counters.get(name)
            if engines is not None and amount:
                engines[engine_idx].inc(amount)
