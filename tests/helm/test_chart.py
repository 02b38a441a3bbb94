"""What single values of the chart do, and which are refused."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import chart_schema
import pytest
import yaml
from support.chart import CHART, VALUES, Chart, Manifest, Manifests, Refused

from moonpool.schemas.access import Tokens
from moonpool.schemas.config import ClientSettings, MasterSettings, NodeSettings
from moonpool.schemas.config_load import KINDS, load
from moonpool.schemas.mooncake_config import client_settings
from moonpool.store_client.node.layout import Layout

MIB = 1 << 20

WRONG: list[tuple[str, Manifest]] = [
    ("master.replicas", {"master": {"replicas": 0}}),
    ("master.port", {"master": {"port": 80}}),
    ("no setting", {"master": {"settings": {"suspect_after": 5}}}),
    ("setting of the chart", {"master": {"settings": {"port": 1}}}),
    ("setting's type", {"master": {"settings": {"suspect_after_s": "soon"}}}),
    ("setting's bound", {"node": {"settings": {"high_watermark": 1.5}}}),
    ("unknown value", {"mastr": {"replicas": 3}}),
    ("unknown value inside", {"node": {"sise": "1Gi"}}),
    ("decimal size", {"node": {"size": "64GB"}}),
    ("number for a size", {"node": {"size": 64}}),
    ("kind of memory", {"node": {"memory": {"kind": "disk"}}}),
    ("path with dots", {"node": {"memory": {"hostPath": "/dev/shm/../etc"}}}),
    ("relative path", {"node": {"memory": {"hostPath": "shm"}}}),
    ("root as user", {"user": 0}),
    ("even etcd members", {"etcd": {"trial": {"replicas": 2}}}),
    ("endpoint without port", {"etcd": {"endpoints": ["https://etcd"]}}),
    ("kind of issuer", {"access": {"tls": {"issuer": {"kind": "CA"}}}}),
    ("text for a switch", {"access": {"insecure": "false"}}),
    ("tag with a slash", {"image": {"tag": "a/b"}}),
    ("empty peer", {"networkPolicy": {"clients": [{}]}}),
]


def settings_in(manifests: Manifests, component: str) -> dict[str, Any]:
    file = "mooncake.json" if component == "client" else "moonpool.json"
    settings: dict[str, Any] = json.loads(manifests.of("ConfigMap", component)["data"][file])
    return settings


@pytest.mark.parametrize(("what", "wrong"), WRONG, ids=[what for what, _ in WRONG])
def test_the_schema_refuses(chart: Chart, what: str, wrong: Manifest) -> None:
    assert chart.ask("refuses", wrong), what


def test_the_schema_knows_every_value_with_its_default(chart: Chart) -> None:
    """Not one more in values.yaml, and not one fewer."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def names(part: Manifest) -> Manifest | None:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        properties = part.get("properties")
        assert not properties or part["additionalProperties"] is False
        return {name: names(child) for name, child in properties.items()} if properties else None

    def compare(wanted: Manifest | None, found: object, where: str) -> None:
        if wanted is not None and isinstance(found, dict) and not where.endswith((".settings", ".resources")):
            assert wanted.keys() - {"global"} == found.keys(), where
            for name in found:
                compare(wanted[name], found[name], f"{where}.{name}")

    compare(names(schema), yaml.safe_load((CHART / "values.yaml").read_text()), "")


def test_the_schema_follows_the_settings() -> None:
    text = chart_schema.SCHEMA.read_text()
    assert chart_schema.refreshed(text) == text, "run `make docs`"


def test_settings_of_the_manifests_exist(rendered: Manifests, tmp_path: Path) -> None:
    """As the processes themselves read them, variables included."""
    for kind, model in (("master", MasterSettings), ("node", NodeSettings)):
        file = tmp_path / f"{kind}.json"
        settings = {kind: settings_in(rendered, kind)[kind]}
        file.write_text(json.dumps(settings))
        pods = [pod for name, pod in rendered.pods() if name.endswith(kind)]
        variables = [v["name"] for pod in pods for c in pod["containers"] for v in c.get("env", [])]
        environment = {name: "pod-1" for name in variables if name.startswith("MOONPOOL_")}
        loaded = load(model, file=file, environment=environment)
        assert loaded.settings.port == settings[kind]["port"]
    client = client_settings(settings_in(rendered, "client"), "mooncake.json")
    assert client.run_dir == load(NodeSettings, file=tmp_path / "node.json").settings.run_dir


def test_settings_that_the_chart_keeps_for_itself_exist() -> None:
    for kind, names in chart_schema.OF_THE_CHART.items():
        assert names.keys() <= KINDS[kind].model_fields.keys()


def test_settings_of_the_user_reach_the_process(chart: Chart) -> None:
    manifests = chart.render(
        {"node": {"settings": {"lanes_max": 7}}, "master": {"settings": {"heartbeat_s": 0.5}}}
    )
    assert settings_in(manifests, "node")["node"]["lanes_max"] == 7
    assert settings_in(manifests, "master")["master"]["heartbeat_s"] == 0.5


def test_changed_settings_restart_their_own_pods_only(chart: Chart) -> None:
    def sums(values: Manifest) -> dict[str, str]:
        made = chart.render(values)
        pods = [made.of("StatefulSet", "master"), made.of("DaemonSet", "node")]
        return {
            each["kind"]: each["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
            for each in pods
        }

    before, after = sums({}), sums({"node": {"size": "17Gi"}})
    assert before["StatefulSet"] == after["StatefulSet"]
    assert before["DaemonSet"] != after["DaemonSet"]


def test_several_masters_want_etcd(chart: Chart) -> None:
    with pytest.raises(Refused, match=r"etcd\.endpoints"):
        chart.render({"master": {"replicas": 2}})


def test_kv_events_want_keys_and_are_reached_at_each_master(chart: Chart) -> None:
    with pytest.raises(Refused, match=r"master\.events\.keysSecret"):
        chart.render({"master": {"events": {"port": 5557}}})
    assert chart.render({"master": {"events": {"port": 5557}}, "access": {"insecure": True}})
    manifests = chart.render("ha-etcd")
    settings = settings_in(manifests, "master")["master"]
    assert settings["events_key"].startswith("/etc/moonpool/events/") and settings["events_port"] == 5557
    pod = manifests.of("StatefulSet", "master")["spec"]["template"]["spec"]
    (secret,) = [one["secret"]["secretName"] for one in pod["volumes"] if one["name"] == "events"]
    assert secret == "pool-events"
    ports = {one["name"]: one["port"] for one in manifests.of("Service", "master-headless")["spec"]["ports"]}
    assert (ports["events"], ports["replays"]) == (5557, 5558)


def test_traces_go_to_the_collector(chart: Chart) -> None:
    manifests = chart.render("ha-etcd")
    for kind, component in (("StatefulSet", "master"), ("DaemonSet", "node")):
        (container,) = manifests.of(kind, component)["spec"]["template"]["spec"]["containers"]
        variables = {one["name"]: one.get("value") for one in container["env"]}
        assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otel-collector.observability:4318"
        assert settings_in(manifests, component)[component]["tracing"] is True
        assert "tracing" not in settings_in(chart.render({}), component)[component]


def test_tls_wants_certificates(chart: Chart) -> None:
    with pytest.raises(Refused, match=r"access\.tls\.clientSecret"):
        chart.render({"access": {"tls": {"enabled": True}}})


def test_masters_are_kept_apart_and_updated_one_by_one(chart: Chart) -> None:
    manifests = chart.render("ha-etcd")
    master = manifests.of("StatefulSet", "master")["spec"]
    assert master["updateStrategy"] == {"type": "RollingUpdate"}
    assert manifests.of("PodDisruptionBudget", "master")["spec"]["maxUnavailable"] == 1
    pod = master["template"]["spec"]
    assert {each["topologyKey"] for each in pod["topologySpreadConstraints"]} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }
    assert pod["affinity"]["podAntiAffinity"]
    leave_s = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert leave_s + 30 <= pod["terminationGracePeriodSeconds"]
    assert "volumeClaimTemplates" not in master, "with etcd there is nothing to keep"
    headless = manifests.of("Service", "master-headless")["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True
    assert master["serviceName"] == manifests.of("Service", "master-headless")["metadata"]["name"]


@pytest.mark.parametrize("size", ["256Mi", "1Gi", "16Gi", "100Gi", "1Ti"])
def test_memory_is_enough_for_the_segment(chart: Chart, size: str) -> None:
    huge = chart.render({"node": {"size": size, "memory": {"kind": "hugePages"}}})
    settings = settings_in(huge, "node")["node"]
    layout = Layout.of(
        *(NodeSettings(**{name: settings.get(name, 0)}).model_dump()[name] for name in ("size", "page_size"))
    )
    limits = huge.of("DaemonSet", "node")["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    kept_bytes = int(limits["hugepages-2Mi"].removesuffix("Mi")) * MIB
    assert layout.file_bytes <= kept_bytes <= layout.file_bytes * 1.05 + 80 * MIB
    assert layout.file_bytes % (2 * MIB) == 0
    assert limits["memory"] == "1024Mi"
    usual = chart.render({"node": {"size": size, "memory": {"kind": "memory"}}})
    pod = usual.of("DaemonSet", "node")["spec"]["template"]["spec"]
    limit = pod["containers"][0]["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Mi")) * MIB == layout.capacity_bytes + 1024 * MIB
    (volume,) = [each for each in pod["volumes"] if each["name"] == "segments"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": limit}


def test_rdma_asks_for_devices_and_locked_memory(chart: Chart) -> None:
    pod = chart.render("rdma").of("DaemonSet", "node")["spec"]["template"]["spec"]
    (node,) = pod["containers"]
    assert node["resources"]["limits"]["rdma/hca"] == node["resources"]["requests"]["rdma/hca"] == "1"
    assert node["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert pod["hostNetwork"] is True
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    (advertise,) = [each for each in node["env"] if each["name"] == "MOONPOOL_NODE_ADVERTISE"]
    assert advertise["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"


def test_tokens_are_made_and_hidden(chart: Chart) -> None:
    manifests = chart.render({})
    made = manifests.of("Secret", "tokens")["stringData"]
    listed = {entry["role"]: entry["token_sha256"] for entry in json.loads(made["tokens.json"])["tokens"]}
    Tokens.parse(json.loads(made["tokens.json"]), "the Secret")
    for role in ("client", "node", "monitor", "admin"):
        token = made[f"{role}-token"]
        assert len(token) >= 40
        assert listed[role] == hashlib.sha256(token.encode()).hexdigest()
        assert token not in made["tokens.json"]
        assert all(token not in str(each) for each in manifests if each["kind"] != "Secret")
    assert not chart.render("external-etcd-tls").all("Secret")
    assert not chart.render("insecure-trial").all("Secret")


def test_only_a_trial_is_insecure(chart: Chart) -> None:
    for name, insecure in (("default", None), ("insecure-trial", True)):
        for kind in ("master", "node"):
            assert settings_in(chart.render(name), kind)[kind].get("insecure") is insecure
    assert "WARNING" in chart.templates({"access": {"insecure": True}})["NOTES.txt"]


def test_nothing_watches_unless_asked(chart: Chart) -> None:
    kinds = {manifest["kind"] for manifest in chart.render({})}
    assert not kinds & {"ServiceMonitor", "PrometheusRule", "Certificate"}


def test_prometheus_scrapes_each_pod_once_and_may(chart: Chart) -> None:
    manifests = chart.render("ha-etcd")
    monitors = manifests.all("ServiceMonitor")
    assert len(monitors) == 2
    for monitor in monitors:
        selector = monitor["spec"]["selector"]["matchLabels"]
        (service,) = [
            each
            for each in manifests.all("Service")
            if selector.items() <= each["metadata"]["labels"].items()
        ]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        credentials = endpoint["authorization"]["credentials"]
        assert credentials["key"] in manifests.of("Secret", credentials["name"])["stringData"]
        assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_rules_and_dashboards_are_those_of_the_files(chart: Chart) -> None:
    manifests = chart.render("ha-etcd")
    rules, dashboards = sorted(CHART.glob("files/*.yaml")), sorted(CHART.glob("files/*.json"))
    groups = [group for file in rules for group in yaml.safe_load(file.read_text())["groups"]]
    assert groups and manifests.of("PrometheusRule")["spec"]["groups"] == groups
    made = manifests.of("ConfigMap", "dashboards")
    held = {name: json.loads(text) for name, text in made["data"].items()}
    assert held and held == {file.name: json.loads(file.read_text()) for file in dashboards}
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_masters_are_named_each_by_itself(chart: Chart) -> None:
    manifests = chart.render("ha-etcd")
    (master,) = manifests.of("StatefulSet", "master")["spec"]["template"]["spec"]["containers"]
    names = [each["name"] for each in master["env"]]
    assert names.index("POD_NAME") < names.index("MOONPOOL_MASTER_ADVERTISE"), "a later one can't be named"
    address = master["env"][names.index("MOONPOOL_MASTER_ADVERTISE")]["value"].replace(
        "$(POD_NAME)", "pool-0"
    )
    service = manifests.of("Service", "master-headless")
    port = service["spec"]["ports"][0]["port"]
    assert address == f"pool-0.{service['metadata']['name']}.inference.svc:{port}"


def test_tls_is_asked_for_where_it_is_spoken(chart: Chart) -> None:
    manifests = chart.render("tls-secrets")
    (master,) = manifests.of("StatefulSet", "master")["spec"]["template"]["spec"]["containers"]
    assert {master[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")} == {"HTTPS"}
    for kind in ("master", "node"):
        assert settings_in(manifests, kind)[kind]["tls_ca"] == "/etc/moonpool/tls/ca.crt"
    assert client_settings(settings_in(manifests, "client"), "mooncake.json").tls_ca
    values = yaml.safe_load(VALUES["tls-secrets"].read_text())
    monitors = chart.render({**values, "monitoring": {"serviceMonitor": {"enabled": True}}}).all(
        "ServiceMonitor"
    )
    assert len(monitors) == 2
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["endpoints"]
        kind = monitor["metadata"]["name"].rpartition("-")[2]
        assert endpoint["scheme"] == "https"
        assert endpoint["tlsConfig"]["serverName"].partition(".")[0].endswith(f"-{kind}")


def test_the_package_holds_what_an_install_needs(chart: Chart, tmp_path: Path) -> None:
    with tarfile.open(chart.ask("package", str(tmp_path))) as archive:
        names = set(archive.getnames())
    wanted = {
        f"moonpool/{path.relative_to(CHART)}"
        for path in CHART.rglob("*")
        if path.is_file() and path.parent.name != "ci"
    }
    assert names == wanted - {"moonpool/.helmignore"} | (names & {"moonpool/.helmignore"})
    assert not any("/ci/" in name for name in names)


def test_clients_of_the_chart_are_told_the_service(chart: Chart) -> None:
    manifests = chart.render({})
    host, _, port = client_settings(settings_in(manifests, "client"), "mooncake.json").master.partition(":")
    service = manifests.of("Service", "-master")
    assert host == f"{service['metadata']['name']}.inference.svc"
    assert int(port) == service["spec"]["ports"][0]["port"]
    assert ClientSettings().master != host
