"""What an engine exports through vLLM's registry: every metric of the table, added up over workers and intervals."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from moonpool.connector.counters import METRICS, Counters, key_of
from moonpool.schemas.metrics import ENGINE_METRICS, MetricKind

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of torch

ENGINE_LABELS = {"model_name": "m", "engine": "0"}


class Page:
    """vLLM's side: a registry, and what it makes of stats."""

    def __init__(self) -> None:
        from moonpool.connector.metrics import MoonpoolPromMetrics

        self.registry = CollectorRegistry()
        types: dict[type, Any] = {
            kind: partial(kind, registry=self.registry) for kind in (Counter, Gauge, Histogram)
        }
        config = SimpleNamespace(kv_transfer_config=None)
        self.metrics = MoonpoolPromMetrics(config, types, list(ENGINE_LABELS), {0: ["m", "0"]})

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {**ENGINE_LABELS, **labels})


def test_every_metric_is_exported() -> None:
    page = Page()
    lines = generate_latest(page.registry).decode().splitlines()
    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
    kinds = {name: kind for name, kind in kinds.items() if not name.endswith("_created")}
    assert kinds == {name: metric.kind for name, metric in ENGINE_METRICS.items()}
    for name, metric in ENGINE_METRICS.items():
        if not metric.labels:
            assert metric.kind is MetricKind.COUNTER and page.value(name) == 0


def test_workers_and_intervals_add_up() -> None:
    from moonpool.connector.metrics import MoonpoolStats

    counters = Counters()
    counters.add("load_blocks", 3)
    counters.add("save_failed_blocks", 2, "no_space")
    way = ("shm", "load")
    times, breakers = key_of("transfer_seconds", *way), key_of("open_breakers", "worker", "node")
    first = MoonpoolStats(data={**counters.take(), times: [0.001, 0.3], breakers: 2})
    counters.add("load_blocks", 4)
    second = MoonpoolStats(data={**counters.take(), times: [0.002], breakers: 0})
    both = first.aggregate(second)
    assert both.reduce()["load_blocks"] == 7 and both.reduce()[times] == pytest.approx(0.101)

    page = Page()
    page.metrics.observe(both.data)
    page.metrics.observe({"load_blocks": 1, "of another version": 1, "load_blocks/odd": 1})
    assert page.value("vllm:moonpool_load_blocks_total") == 8
    assert page.value("vllm:moonpool_save_failed_blocks_total", reason="no_space") == 2
    labels = {"transport": "shm", "direction": "load"}
    assert page.value("vllm:moonpool_transfer_seconds_count", **labels) == 3
    assert page.value("vllm:moonpool_transfer_seconds_bucket", **labels, le="0.001") == 1
    gauge = "vllm:moonpool_open_breakers"
    assert page.value(gauge, side="worker", peer="node") == 2
    quiet = MoonpoolStats(data={breakers: 0})
    assert not quiet.is_empty()  # or the gauge would stay
    page.metrics.observe(quiet.data)
    assert page.value(gauge, side="worker", peer="node") == 0


def test_names_in_the_connector_are_those_of_the_table() -> None:
    assert len(METRICS) == len(ENGINE_METRICS)
    with pytest.raises((AssertionError, KeyError)):
        Counters().add("save_failed_blocks", 1)
