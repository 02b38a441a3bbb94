"""Whatever values the schema allows, the chart renders manifests that Kubernetes takes, or says which value it can't."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.chart import CHART, Chart, Refused
from support.soak import SOAK

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OF_OPERATORS = {"Certificate", "ServiceMonitor", "PrometheusRule"}
NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
LABELS = st.dictionaries(NAMES, NAMES, max_size=2)
EXAMPLES: dict[str, list[Any]] = {
    "peers": [[], [{"podSelector": {}}], [{"ipBlock": {"cidr": "10.0.0.0/8"}}]],
    "tolerations": [[], [{"operator": "Exists"}]],
    "resources": [{}, {"limits": {"memory": "1Gi"}}],
}


def strategy(part: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of one part of the schema."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        if name in EXAMPLES:
            return st.sampled_from(EXAMPLES[name])
        return LABELS if name == "labels" else strategy(SCHEMA["$defs"][name])
    if "enum" in part:
        return st.sampled_from(part["enum"])
    if "oneOf" in part or "anyOf" in part:
        return st.one_of([strategy(choice) for choice in part.get("oneOf") or part["anyOf"]])
    kinds = part.get("type")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if kind == "object" and "properties" in part:
        return st.fixed_dictionaries({}, optional={n: strategy(p) for n, p in part["properties"].items()})
    if kind == "object":
        return st.just({})
    if kind == "array":
        return st.lists(strategy(part["items"]), max_size=2, unique_by=json.dumps)
    if kind == "boolean":
        return st.booleans()
    if kind == "string":
        return st.from_regex(part["pattern"], fullmatch=True) if "pattern" in part else NAMES
    if kind == "integer":
        return st.integers(int(part.get("minimum", 0)), int(part.get("maximum", 1 << 20)))
    assert kind == "number", part
    low = part.get("minimum", part.get("exclusiveMinimum", 0))
    high = part.get("maximum", part.get("exclusiveMaximum", low + 1))
    return st.just((low + high) / 2)


@settings(
    derandomize=True,
    deadline=None,
    max_examples=30 * SOAK,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(values=strategy(SCHEMA))
def test_values_that_are_allowed_make_manifests_that_are(chart: Chart, values: dict[str, Any]) -> None:
    refusal = chart.ask("refuses", values)
    assert not refusal, "the strategy makes what the schema allows"
    try:
        manifests = chart.render(values)
    except Refused as refused:
        assert any(
            name in str(refused) for name in ("etcd.", "access.tls.", "monitoring.", "master.events.")
        ), refused
        return
    for manifest in manifests:
        if manifest["kind"] not in OF_OPERATORS:
            assert chart.ask("validate", manifest) == "", manifest
