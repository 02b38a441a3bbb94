"""What the chart makes of every values file in ci/: accepted by Kubernetes, consistent in itself, and as locked up as
a pod can be."""

from __future__ import annotations

from typing import Any

from support.chart import VALUES, Chart, Manifest, Manifests

OF_OPERATORS = {"Certificate", "ServiceMonitor", "PrometheusRule"}
"""Kinds that Kubernetes itself doesn't know: their operators bring them."""
CAPABILITIES = {"prepare": ["CHOWN"], "node": ["IPC_LOCK"]}
"""What a container of that name may have more than nothing, with a reason beside it in the template."""


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def labels_of_pods(manifests: Manifests) -> list[dict[str, str]]:
    templates = [
        each["spec"]["template"] for kind in ("StatefulSet", "DaemonSet") for each in manifests.all(kind)
    ]
    return [each["metadata"]["labels"] for each in templates]


def test_helm_has_nothing_against_it(chart: Chart, values: Manifest) -> None:
    assert chart.ask("lint", values) == []


def test_kubernetes_takes_every_manifest(chart: Chart, rendered: Manifests) -> None:
    assert chart.ask("kubernetes") >= "1.37"
    for manifest in rendered:
        if manifest["kind"] not in OF_OPERATORS:
            assert chart.ask("validate", manifest) == "", f"{manifest['kind']} {manifest['metadata']['name']}"


def test_a_wrong_manifest_would_be_seen(chart: Chart) -> None:
    master = chart.render({}).of("StatefulSet", "master")
    master["spec"]["template"]["spec"]["containers"][0]["readonlyRootFilesystem"] = True
    assert "readonlyRootFilesystem" in chart.ask("validate", master)


def test_names_are_not_used_twice(rendered: Manifests) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered]
    assert len(set(names)) == len(names)


def test_pods_may_do_next_to_nothing(rendered: Manifests) -> None:
    for _, pod in rendered.pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostPID", "hostIPC"} & pod.keys()
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"]["drop"] == ["ALL"]
            assert security["capabilities"].get("add", []) in ([], CAPABILITIES.get(container["name"]))
            assert "privileged" not in security
            if container["name"] != "prepare":
                assert not {"runAsUser", "runAsNonRoot"} & security.keys()


def test_without_the_hosts_memory_every_pod_is_restricted(chart: Chart) -> None:
    """Pod Security's strictest level, as far as test_pods_may_do_next_to_nothing doesn't look at it."""
    for _, pod in chart.render("minimal").pods():
        assert "initContainers" not in pod
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for volume in pod.get("volumes", []):
            (kind,) = volume.keys() - {"name"}
            assert kind in {"configMap", "emptyDir", "secret"}
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert not [port for port in container.get("ports", []) if "hostPort" in port]


def test_pods_have_bounds(rendered: Manifests) -> None:
    for _, pod in rendered.pods():
        for container in containers(pod):
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
        for volume in pod.get("volumes", []):
            medium = volume.get("emptyDir", {}).get("medium", "")
            if "emptyDir" in volume and not medium.startswith("HugePages"):
                assert volume["emptyDir"]["sizeLimit"], volume


def test_servers_are_probed_on_ports_that_they_have(rendered: Manifests) -> None:
    for kind in ("StatefulSet", "DaemonSet"):
        for each in rendered.all(kind):
            for container in each["spec"]["template"]["spec"]["containers"]:
                ports = {port["name"] for port in container["ports"]}
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    how = container[probe].get("httpGet") or container[probe]["tcpSocket"]
                    assert how["port"] in ports


def test_volumes_and_mounts_agree(rendered: Manifests) -> None:
    claims = {
        each["metadata"]["name"]: {
            claim["metadata"]["name"] for claim in each["spec"]["volumeClaimTemplates"]
        }
        for each in rendered.all("StatefulSet")
        if "volumeClaimTemplates" in each["spec"]
    }
    for name, pod in rendered.pods():
        mounted = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])} | claims.get(name, set())


def test_what_a_pod_mounts_is_made_or_named_by_values(rendered: Manifests, values: Manifest) -> None:
    made = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    made |= {("Secret", each["spec"]["secretName"]) for each in rendered.all("Certificate")}
    keys = {
        (each["kind"], each["metadata"]["name"]): (each.get("data") or each.get("stringData")).keys()
        for each in [*rendered.all("ConfigMap"), *rendered.all("Secret")]
    }
    for _, pod in rendered.pods():
        for volume in pod.get("volumes", []):
            for kind, source, field in (
                ("ConfigMap", "configMap", "name"),
                ("Secret", "secret", "secretName"),
            ):
                if source in volume:
                    wanted = (kind, volume[source][field])
                    assert wanted in made or wanted[1] in str(values), wanted
                    items = {item["key"] for item in volume[source].get("items", [])}
                    assert wanted not in keys or items <= keys[wanted]


def test_selectors_find_pods(rendered: Manifests) -> None:
    pods = labels_of_pods(rendered)
    selectors: list[tuple[str, dict[str, Any]]] = [
        (each["metadata"]["name"], each["spec"]["selector"]) for each in rendered.all("Service")
    ]
    for kind in ("PodDisruptionBudget", "StatefulSet", "DaemonSet"):
        selectors += [(kind, each["spec"]["selector"]["matchLabels"]) for each in rendered.all(kind)]
    selectors += [
        ("NetworkPolicy", each["spec"]["podSelector"]["matchLabels"])
        for each in rendered.all("NetworkPolicy")
    ]
    for name, selector in selectors:
        assert sum(selector.items() <= labels.items() for labels in pods) == 1, name


def test_services_and_policies_name_ports_of_the_pods(rendered: Manifests) -> None:
    templates = [
        each["spec"]["template"] for kind in ("StatefulSet", "DaemonSet") for each in rendered.all(kind)
    ]
    for each in [*rendered.all("Service"), *rendered.all("NetworkPolicy")]:
        selector = each["spec"].get("selector") or each["spec"]["podSelector"]["matchLabels"]
        (pod,) = [t for t in templates if selector.items() <= t["metadata"]["labels"].items()]
        ports = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
        named = {port["targetPort"] for port in each["spec"].get("ports", [])}
        named |= {
            port["port"]
            for rule in each["spec"].get("ingress", [])
            for port in rule["ports"]
            if isinstance(port["port"], str)
        }
        assert named <= ports, each["metadata"]["name"]


def test_long_names_still_fit(chart: Chart) -> None:
    for manifest in chart.render("ha-etcd", name="a-release-with-a-name-of-fifty-three-characters-at-all"):
        assert len(manifest["metadata"]["name"]) <= 52  # ten more for what a controller adds
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())


def test_the_values_files_cover_the_chart(chart: Chart) -> None:
    """Every kind that a template makes, every way to keep memory."""
    made = [chart.render(name) for name in VALUES]
    kinds = {manifest["kind"] for manifests in made for manifest in manifests}
    assert kinds >= {"StatefulSet", "DaemonSet", "Service", "ConfigMap", "Secret", "ServiceAccount", "Pod"}
    assert kinds >= {"NetworkPolicy", "PodDisruptionBudget", "Certificate"}
