"""Grafana's dashboard and the alerts ask for metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from moonpool.schemas.metrics import ENGINE_METRICS, MASTER_METRICS, NODE_METRICS, MetricKind

FILES = Path(__file__).resolve().parents[2] / "helm" / "moonpool" / "files"
METRICS = {**MASTER_METRICS, **NODE_METRICS, **ENGINE_METRICS}
SUFFIX = re.compile(r"_(bucket|sum|count)$")
OTHER_LABELS = {"le", "instance"}


def dashboard() -> list[tuple[str, str]]:
    document = json.loads((FILES / "grafana-dashboard.json").read_text())
    return [
        (panel["title"], target["expr"])
        for panel in document["panels"]
        for target in panel.get("targets", ())
    ]


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load((FILES / "prometheus-rules.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


QUERIES = [*dashboard(), *((rule["alert"], rule["expr"]) for rule in alerts())]


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_query_asks_for_what_there_is(title: str, query: str) -> None:
    names = re.findall(r"(?:vllm:)?moonpool_\w+", query)
    assert names
    labels: set[str] = set(OTHER_LABELS)
    for name in names:
        plain = SUFFIX.sub("", name) if name not in METRICS else name
        assert plain in METRICS, f"{title}: {name}"
        assert (plain != name) == (METRICS[plain].kind is MetricKind.HISTOGRAM), f"{title}: {name}"
        labels |= set(METRICS[plain].labels)
    asked = {label for part in re.findall(r"by \(([^)]*)\)", query) for label in part.split(", ")}
    asked |= set(re.findall(r"[{,]\s*(\w+)\s*!?=", query))
    assert asked <= labels, f"{title}: {asked - labels}"
    for name in re.findall(r"(?:rate|increase)\(((?:vllm:)?moonpool_\w+)", query):
        assert METRICS[SUFFIX.sub("", name)].kind is not MetricKind.GAUGE, f"{title}: rate of a gauge"


def test_panels_don_t_overlap() -> None:
    document = json.loads((FILES / "grafana-dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_alerts_say_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["for"] and len(rule["annotations"]["description"]) > 20, rule["alert"]
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())
