"""Samples as a page that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from moonpool.schemas.metrics import MetricKind, Samples


class _Page(Collector):
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        for name, metric in self._samples.table.items():
            family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
            if metric.kind is MetricKind.HISTOGRAM:
                family = HistogramMetricFamily(name, metric.help, labels=metric.labels)
                for labels, histogram in self._samples.histograms.get(name, ()):
                    below, buckets = 0, []
                    bounds = [*map(repr, histogram.bounds()), "+Inf"]
                    for bound, count in zip(bounds, histogram.counts, strict=True):
                        below += count
                        buckets.append((bound, float(below)))
                    family.add_metric(labels, buckets, histogram.sum)
            else:
                counts = metric.kind is MetricKind.COUNTER
                kind = CounterMetricFamily if counts else GaugeMetricFamily
                family = kind(name, metric.help, labels=metric.labels)
                for labels, value in self._samples.values.get(name, ()):
                    family.add_metric(labels, value)
            yield family


def render(samples: Samples, accept: str = "") -> tuple[bytes, str]:
    """(page, content type). `accept`: the request's header; it decides between the text forms. With the samples come
    this process's own numbers (process_*)."""
    registry = CollectorRegistry()
    registry.register(_Page(samples))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
