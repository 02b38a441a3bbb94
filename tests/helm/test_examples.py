"""The examples beside the chart: accepted by Kubernetes, fitting the chart, and readable by the connector."""

from __future__ import annotations

import json
from typing import Any

import yaml
from support.chart import ROOT, Chart, Manifest

from moonpool.connector.extra_config import read_extra_config

EXAMPLE = ROOT / "helm" / "examples" / "vllm-multiconnector.yaml"


def documents() -> list[Manifest]:
    return list(yaml.safe_load_all(EXAMPLE.read_text()))


def test_kubernetes_takes_the_examples(chart: Chart) -> None:
    for document in documents():
        assert chart.ask("validate", document) == "", document["metadata"]["name"]


def test_the_pool_is_second_and_its_settings_are_known() -> None:
    (configs,) = [each["data"] for each in documents() if each["kind"] == "ConfigMap"]
    for name in ("prefill.json", "decode.json"):
        config: dict[str, Any] = json.loads(configs[name])
        assert config["kv_load_failure_policy"] == "recompute"
        first, ours = config["kv_connector_extra_config"]["connectors"]
        assert first["kv_connector"] == "NixlConnector"
        assert (ours["kv_connector"], ours["kv_connector_module_path"]) == (
            "MoonpoolStoreConnector",
            "moonpool.connector",
        )
        read_extra_config(ours["kv_connector_extra_config"], environment={})
        assert "engine_id" not in first | ours


def test_engines_meet_the_chart_where_it_is(chart: Chart) -> None:
    """Names, user, folders: what the fast path needs."""
    made = chart.render({})
    names = {(each["kind"], each["metadata"]["name"]) for each in made}
    node = made.of("DaemonSet", "node")["spec"]["template"]["spec"]
    folders = {
        volume["name"]: volume["hostPath"]["path"] for volume in node["volumes"] if "hostPath" in volume
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in node["containers"][0]["volumeMounts"]}
    engines = [each["spec"]["template"]["spec"] for each in documents() if each["kind"] == "Deployment"]
    assert len(engines) == 2
    for engine in engines:
        assert engine["securityContext"]["runAsUser"] == node["securityContext"]["runAsUser"]
        (container,) = engine["containers"]
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        for name, folder in folders.items():
            (volume,) = [each for each in engine["volumes"] if each["name"] == name]
            assert (volume["hostPath"]["path"], places[name]) == (folder, mounts[name])
        volumes = {volume["name"]: volume for volume in engine["volumes"]}
        assert ("ConfigMap", volumes["pool"]["configMap"]["name"]) in names
        assert ("Secret", volumes["token"]["secret"]["secretName"]) in names
        assert engine["enableServiceLinks"] is False
